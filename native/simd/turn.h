// Transposition of a tile of kLanes x kLanes numbers in registers.
#pragma once
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {

// Vectors of pairs, and of quads as pairs of pairs. Moving whole pairs or quads is sometimes
// cheaper than moving single numbers.
typedef double VecPairs __attribute__((vector_size(BESTOF_VECTOR_BYTES), may_alias));
typedef long long VecPairsIndex __attribute__((vector_size(BESTOF_VECTOR_BYTES), may_alias));
constexpr long kQuads = kLanes / 4;

// Returns, in every quad, the first (or last) two of a, each followed by its neighbour in b.
template <int kLast>
BESTOF_INLINE Vec interleave(Vec a, Vec b) {
  VecInt from;
#pragma GCC unroll 16
  for (int k = 0; k < kLanes; ++k) from[k] = k / 4 * 4 + 2 * kLast + k % 4 / 2 + k % 2 * kLanes;
  return __builtin_shuffle(a, b, from);
}

// Returns, in every quad, the first (or last) pair of a, then that of b.
template <int kLast>
BESTOF_INLINE Vec interleave_pairs(Vec a, Vec b) {
  VecPairsIndex from;
#pragma GCC unroll 8
  for (int k = 0; k < kLanes / 2; ++k) from[k] = k / 2 * 2 + kLast + k % 2 * (kLanes / 2);
  return reinterpret_cast<Vec>(
      __builtin_shuffle(reinterpret_cast<VecPairs>(a), reinterpret_cast<VecPairs>(b), from));
}

// Returns the even (or odd) quads of a, then those of b.
template <int kOdd>
BESTOF_INLINE Vec every_other_quad(Vec a, Vec b) {
  VecPairsIndex from;
#pragma GCC unroll 8
  for (int k = 0; k < kLanes / 2; ++k) from[k] = k / 2 * 4 + 2 * kOdd + k % 2;
  return reinterpret_cast<Vec>(
      __builtin_shuffle(reinterpret_cast<VecPairs>(a), reinterpret_cast<VecPairs>(b), from));
}

// Transposes the kLanes x kLanes tile in `v`: first 4 x 4 inside the quads, then the quads. Every
// step is one shuffle with fixed positions. log2(kLanes) rounds of permutes by an index, with as
// many instructions, took 1.3 times as long (AVX-512, in L1).
BESTOF_INLINE void turn(Vec (&v)[kLanes]) {
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; i += 4) {
    const Vec first = interleave<0>(v[i], v[i + 1]), last = interleave<1>(v[i], v[i + 1]);
    const Vec first_below = interleave<0>(v[i + 2], v[i + 3]),
              last_below = interleave<1>(v[i + 2], v[i + 3]);
    v[i] = interleave_pairs<0>(first, first_below);
    v[i + 1] = interleave_pairs<1>(first, first_below);
    v[i + 2] = interleave_pairs<0>(last, last_below);
    v[i + 3] = interleave_pairs<1>(last, last_below);
  }
#pragma GCC unroll 2
  for (int round = 1; round < kQuads; round *= 2) {
    Vec next[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) {
      const int upper = i / 4 * 8 + i % 4;
      next[i] = every_other_quad<0>(v[upper], v[upper + 4]);
      next[kLanes / 2 + i] = every_other_quad<1>(v[upper], v[upper + 4]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) v[i] = next[i];
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
