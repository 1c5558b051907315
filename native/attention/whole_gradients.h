// The gradients of attention of bfloat16 by products of bfloat16.
#pragma once
#include "attention/tiled_gradients.h"
#include "attention/whole_numbers.h"

namespace bestof {
namespace BESTOF_TARGET {

inline long whole_floats(const AttentionBackward& p) {
  return gradient_layout_of<WholeNumbers>(p.of).end;
}

inline void descend_whole(const AttentionBackward& p, const AttentionBackwardCall& call) {
  const GradientLayout at = gradient_layout_of<WholeNumbers>(p.of);
  each_head_of_keys(p, call, at.end, [&](long batch, long shared, float* scratch) {
    descend_heads(p, call, at, WholeNumbers{}, batch, shared, scratch);
  });
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
