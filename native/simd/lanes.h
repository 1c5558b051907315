// What the lanes of one vector have in common: their sum, their maximum.
#pragma once
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {

// The lane k of the result is lane k ^ kDistance of v.
template <int kDistance>
BESTOF_INLINE Vec exchange(Vec v) {
  VecInt from;
#pragma GCC unroll 16
  for (int k = 0; k < kLanes; ++k) from[k] = k ^ kDistance;
  return __builtin_shuffle(v, from);
}

// Ignores NaN in a.
BESTOF_INLINE Vec maximum(Vec a, Vec b) {
  return a > b ? a : b;
}

template <int kDistance = kLanes / 2>
BESTOF_INLINE float highest_lane(Vec v) {
  if constexpr (kDistance == 0) {
    return v[0];
  } else {
    return highest_lane<kDistance / 2>(maximum(exchange<kDistance>(v), v));
  }
}

template <int kDistance = kLanes / 2>
BESTOF_INLINE float sum_lanes(Vec v) {
  if constexpr (kDistance == 0) {
    return v[0];
  } else {
    return sum_lanes<kDistance / 2>(exchange<kDistance>(v) + v);
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
