// The operands of a product of bfloat16 pairs on their way to the tiles: columns in panels, as in
// gemm/panels.h, but each step of a panel holds pairs of neighbours in depth.
#pragma once
#include "gemm/panels.h"
#include "simd/bfloat16.h"

namespace bestof {
namespace BESTOF_TARGET {

// The pair at p; a zero takes the place of what lies behind the `left` elements that are left.
BESTOF_INLINE Pair pair_at(const Bfloat16* p, long left) {
  return left >= 2 ? load_pair(p) : left == 1 ? load_last(p) : 0;
}

BESTOF_INLINE void store_pairs(Pair* p, VecInt v) {
  *reinterpret_cast<VecOfPairs*>(p) = v;
}

// Turns `count` <= kLanes columns, whose depth is contiguous, into a part of a panel. The lanes of
// absent columns become zero.
inline void turn_pairs(const ViewOf<Bfloat16>& from, long depth, long count, Pair* to) {
  long k = 0;
  for (; k + 2 * kLanes <= depth; k += 2 * kLanes) {
    Vec tile[kLanes];
#pragma GCC unroll 16
    for (long i = 0; i < kLanes; ++i) {
      tile[i] =
          i < count ? reinterpret_cast<Vec>(load_pairs(from.data + i * from.across + k)) : Vec{};
    }
    turn(tile);
#pragma GCC unroll 16
    for (long i = 0; i < kLanes; ++i)
      store_pairs(to + (k / 2 + i) * kPanel, reinterpret_cast<VecInt>(tile[i]));
  }
  for (; k < depth; k += 2) {
    for (long i = 0; i < kLanes; ++i) {
      to[k / 2 * kPanel + i] = i < count ? pair_at(from.data + i * from.across + k, depth - k) : 0;
    }
  }
}

// The bits of the columns [j, j + kLanes) of a row, of which `count` exist.
BESTOF_INLINE VecInt row_bits(const Bfloat16* row, long j, long count) {
  return j + kLanes <= count ? load_bits(row + j) : load_first_bits(row + j, larger(count - j, 0));
}

// Pairs neighbouring rows of `count` <= kPanel columns that lie side by side. Rows are asked for in
// advance, as in copy_columns.
inline void pair_rows(const ViewOf<Bfloat16>& from, long depth, long count, Pair* to) {
  constexpr long kAhead = 16;
  for (long k = 0; k < depth; k += 2, to += kPanel) {
    const Bfloat16* row = from.data + k * from.along;
    __builtin_prefetch(row + kAhead * from.along, 0, 3);
    __builtin_prefetch(row + (kAhead + 1) * from.along, 0, 3);
#pragma GCC unroll 4
    for (long j = 0; j < kPanel; j += kLanes) {
      const VecInt first = row_bits(row, j, count);
      const VecInt second = k + 1 < depth ? row_bits(row + from.along, j, count) : VecInt{};
      store_pairs(to + j, first | (second << 16));
    }
  }
}

// Packs columns [0, count) as panels [panel][pair][kPanel]. The tail of the last panel and the
// partner of a last single element are zero. Either stride of `from` is 1.
inline void pack_pair_columns(const ViewOf<Bfloat16>& from, long depth, long count, Pair* to) {
  for (long j = 0; j < count; j += kPanel, to += divide_up(depth, 2) * kPanel) {
    const ViewOf<Bfloat16> panel = from.at(j, 0);
    const long columns = smaller(count - j, kPanel);
    if (from.along != 1) {
      pair_rows(panel, depth, columns, to);
      continue;
    }
    for (long i = 0; i < kPanel; i += kLanes)
      turn_pairs(panel.at(i, 0), depth, smaller(columns - i, kLanes), to + i);
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
