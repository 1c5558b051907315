// The operands of a matrix product on their way to the tiles: columns in panels, rows as copies.
// Either is read from any orientation. Panels are float32, their operands float32 or bfloat16.
#pragma once
#include "gemm/tile.h"
#include "simd/bfloat16.h"

namespace bestof {
namespace BESTOF_TARGET {

// A part of an operand: element (i, k) at data[i * across + k * along], where k counts in depth.
template <class Element>
struct ViewOf {
  const Element* data;
  long across, along;

  BESTOF_INLINE ViewOf at(long i, long k) const {
    return {data + i * across + k * along, across, along};
  }
};
using View = ViewOf<float>;

// Turns `count` <= kLanes columns, whose depth is contiguous, into a part of a panel. The lanes of
// absent columns become zero.
template <class Element>
inline void turn_columns(const ViewOf<Element>& from, long depth, long count, float* to) {
  long k = 0;
  for (; k + kLanes <= depth; k += kLanes) {
    Vec tile[kLanes];
#pragma GCC unroll 16
    for (long i = 0; i < kLanes; ++i)
      tile[i] = i < count ? load(from.data + i * from.across + k) : Vec{};
    turn(tile);
#pragma GCC unroll 16
    for (long i = 0; i < kLanes; ++i) store(to + (k + i) * kPanel, tile[i]);
  }
  for (; k < depth; ++k) {
    for (long i = 0; i < kLanes; ++i)
      to[k * kPanel + i] = i < count ? value_of(from.data[i * from.across + k]) : 0.0f;
  }
}

// Copies `count` <= kPanel columns that lie side by side. Their rows are asked for in advance: each
// may lie in a page of its own.
template <class Element>
inline void copy_columns(const ViewOf<Element>& from, long depth, long count, float* to) {
  constexpr long kRowsAhead = 8;
  if (count == kPanel) {
    for (long k = 0; k < depth; ++k) {
      const Element* row = from.data + k * from.along;
#pragma GCC unroll 4
      for (int j = 0; j < kPanelVectors; ++j) {
        store(to + k * kPanel + j * kLanes, load(row + j * kLanes));
        __builtin_prefetch(row + kRowsAhead * from.along + j * kLanes, 0, 3);
      }
    }
    return;
  }
  for (long k = 0; k < depth; ++k) {
    const Element* row = from.data + k * from.along;
    for (long j = 0; j < kPanel; j += kLanes) {
      const long n = larger(smaller(count - j, kLanes), 0);
      store(to + k * kPanel + j, load_first(row + j, n));
    }
  }
}

// Packs columns [0, count) as panels [panel][depth][kPanel], the tail of the last one zero.
template <class Element>
inline void pack_columns(const ViewOf<Element>& from, long depth, long count, float* to) {
  for (long j = 0; j < count; j += kPanel, to += depth * kPanel) {
    const ViewOf<Element> panel = from.at(j, 0);
    const long columns = smaller(count - j, kPanel);
    if (from.across == 1) {
      copy_columns(panel, depth, columns, to);
    } else if (from.along == 1) {
      for (long i = 0; i < kPanel; i += kLanes)
        turn_columns(panel.at(i, 0), depth, smaller(columns - i, kLanes), to + i);
    } else {
      for (long k = 0; k < depth; ++k) {
        for (long i = 0; i < kPanel; ++i)
          to[k * kPanel + i] =
              i < columns ? value_of(from.data[(j + i) * from.across + k * from.along]) : 0;
      }
    }
  }
}

// Copies the rows of a tile, kCopyStride apart.
inline void copy_rows_of_tile(const View& from, long depth, long rows, float* to) {
  if (from.along == 1) {
    for (long i = 0; i < rows; ++i)
      __builtin_memcpy(to + i * kCopyStride, from.data + i * from.across, depth * sizeof(float));
  } else {
    for (long i = 0; i < rows; ++i) {
      for (long k = 0; k < depth; ++k)
        to[i * kCopyStride + k] = from.data[i * from.across + k * from.along];
    }
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
