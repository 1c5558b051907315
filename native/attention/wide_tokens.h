// Tokens of one head, float32 in their place, or bfloat16 that are widened to float32 and back.
#pragma once
#include "attention/score_tile.h"
#include "simd/bfloat16.h"

namespace bestof {
namespace BESTOF_TARGET {

// Tokens in memory.
template <class Element>
struct Tokens {
  Element* data;
  long token, count;  // their distance and number
};

// The distance of widened tokens.
BESTOF_INLINE long wide_stride(long size) {
  return round_up(size, 16);
}

inline void clear_rows(float* to, long stride, long rows, long size) {
  for (long i = 0; i < rows; ++i) __builtin_memset(to + i * stride, 0, size * sizeof(float));
}

// Returns the tokens as float32, in `to` unless they are that.
inline const float* widened(const Tokens<const float>& from, long, float*) {
  return from.data;
}
inline const float* widened(const Tokens<const Bfloat16>& from, long size, float* to) {
  const long stride = wide_stride(size);
  for (long i = 0; i < from.count; ++i)
    copy_scaled(from.data + i * from.token, size, 1.0f, to + i * stride);
  return to;
}

// Returns where sums begin at zero: in the place of the results if these are float32, else in
// `sums`.
inline float* cleared(const Tokens<float>& to, long size, float*) {
  clear_rows(to.data, to.token, to.count, size);
  return to.data;
}
inline float* cleared(const Tokens<Bfloat16>& to, long size, float* sums) {
  __builtin_memset(sums, 0, to.count * wide_stride(size) * sizeof(float));
  return sums;
}

// Writes sums that are not in the place of the results.
inline void finish(const float*, long, const Tokens<float>&) {}
inline void finish(const float* sums, long size, const Tokens<Bfloat16>& to) {
  const long stride = wide_stride(size);
  for (long i = 0; i < to.count; ++i) round_all(sums + i * stride, to.data + i * to.token, size);
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
