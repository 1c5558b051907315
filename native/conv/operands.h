// The operands of a call, by the type of their elements.
#pragma once
#include "conv/problem.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {

inline bool is_float32(const Problem& p) {
  return p.element == Element::kFloat32;
}

BESTOF_INLINE const float* floats(const void* operand) {
  return static_cast<const float*>(operand);
}
BESTOF_INLINE float* floats(void* operand) {
  return static_cast<float*>(operand);
}
BESTOF_INLINE const Bfloat16* halves(const void* operand) {
  return static_cast<const Bfloat16*>(operand);
}
BESTOF_INLINE Bfloat16* halves(void* operand) {
  return static_cast<Bfloat16*>(operand);
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
