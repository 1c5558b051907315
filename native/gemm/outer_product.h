// The micro-kernel of the weight gradients: sums of outer products. Tile(i, j) += sum over p of
// a[p][i] * b[p][j].
#pragma once
#include "gemm/micro_kernel.h"

namespace bestof {
namespace BESTOF_TARGET {

// Where b lies: row p begins at row[p] + offset, or, with row == nullptr, at base + p * stride.
struct OuterRows {
  const float* const* row;
  const float* base;
  long stride, offset;
};

template <bool kWhole>
BESTOF_INLINE Vec load_lanes(const float* p, long n) {
  if constexpr (kWhole) {
    (void)n;
    return load(p);
  } else {
    return n >= kLanes ? load(p) : n > 0 ? load_first(p, n) : Vec{};
  }
}

// R rows of `to`, `ld` apart, by n <= kPanel columns, plus or (first) equal to the sum over `count`
// steps.
template <int R, bool kWhole>
inline void outer_tile(const float* a, long a_stride, const OuterRows& b, long count, long n,
                       bool first, float* to, long ld) {
  Accumulator<R> acc;
  clear(acc);
  for (long p = 0; p < count; ++p) {
    const float* from = (b.row ? b.row[p] : b.base + p * b.stride) + b.offset;
    Vec column[kPanelVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j)
      column[j] = load_lanes<kWhole>(from + j * kLanes, n - j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const Vec row = broadcast(a[p * a_stride + i]);
#pragma GCC unroll 4
      for (int j = 0; j < kPanelVectors; ++j) acc.v[i][j] += row * column[j];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j) {
      const long lanes = smaller(n - j * kLanes, kLanes);
      float* out = to + i * ld + j * kLanes;
      if (lanes <= 0) continue;
      const Vec old = first ? Vec{} : load_lanes<kWhole>(out, lanes);
      if (lanes == kLanes) {
        store(out, old + acc.v[i][j]);
      } else {
        store_first(out, old + acc.v[i][j], lanes);
      }
    }
  }
}

template <int R>
BESTOF_INLINE void outer_rows(long rows, const float* a, long a_stride, const OuterRows& b,
                              long count, long n, bool first, float* to, long ld) {
  if constexpr (R > 0) {
    if (rows == R) {
      if (n == kPanel) return outer_tile<R, true>(a, a_stride, b, count, n, first, to, ld);
      return outer_tile<R, false>(a, a_stride, b, count, n, first, to, ld);
    }
    outer_rows<R - 1>(rows, a, a_stride, b, count, n, first, to, ld);
  }
}

// to[rows x columns] (+)= a^T b over `count` steps. The panel of b stays in L1 while the rows of a
// pass.
inline void outer_product(const float* a, long a_stride, long rows, OuterRows b, long columns,
                          long count, bool first, float* to, long ld) {
  const TileCut cut = cut_rows(rows);
  const long offset = b.offset;
  for (long c = 0; c < columns; c += kPanel) {
    b.offset = offset + c;
    for (long t = 0; t < cut.tiles; ++t) {
      const long begin = cut.begin(t);
      outer_rows<kTileRows>(cut.begin(t + 1) - begin, a + begin, a_stride, b, count,
                            smaller(columns - c, kPanel), first, to + begin * ld + c, ld);
    }
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
