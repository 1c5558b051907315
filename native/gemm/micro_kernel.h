// The GEMM micro-kernel: a tile of up to kTileRows x kPanel results kept in registers over the
// whole reduction.
#pragma once
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {

// 32 vector registers hold 14 x 2 accumulators, 2 vectors of B and a broadcast; 16 registers hold 6
// x 2.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kTileRows = 14;
#else
constexpr int kTileRows = 6;
#endif
constexpr int kPanelVectors = 2;
constexpr long kPanel =
    kPanelVectors * kLanes;  // columns of B that lie together: packed [panel][depth][kPanel]

// A chain of fused multiply-adds is cut after this many terms: the rounding error of a sum of n
// grows as sqrt(n), and 3x3 x 512 channels in one chain has 1.7e-6 relative rms where 1e-6 is
// promised.
constexpr long kChain = 1024;

// Steps of B that are asked for in advance: panels of 3x3 x 512 channels stream from L2, where it
// gains 2 to 12 %.
constexpr long kAhead = 16;

// The rows of A of a tile. Row i under tap t begins at row[t * leading + i]; in a regular tile that
// is row[t * leading] + i * stride for all taps, which needs no address per row.
template <class Element>
struct TileRows {
  const Element* const* row;
  long leading;
  long offset;  // added to every row: the first channel of a group
  long stride;
};

// Rows cut into tiles of nearly the same height. A division takes up to 90 cycles, a tenth of a
// tile of 64 steps: there is one for all tiles.
struct TileCut {
  long tiles, height, taller;  // the first `taller` tiles have a row more

  BESTOF_INLINE long begin(long tile) const { return tile * height + smaller(tile, taller); }
};

BESTOF_INLINE TileCut cut_rows(long rows) {
  const long tiles = divide_up(rows, kTileRows), height = rows / larger(tiles, 1);
  return {tiles, height, rows - tiles * height};
}

// How the rows lie; the fetching ones also ask for a panel that will be needed next: a half of it,
// or all.
enum class Walk { kAnywhere, kRegular, kRegularFetchingHalf, kRegularFetching };

// V: the vectors of a row; 1 for the last half of a panel that is not filled.
template <int R, int V = kPanelVectors>
struct Accumulator {
  Vec v[R][V];
};

template <int R, int V>
BESTOF_INLINE void clear(Accumulator<R, V>& acc) {
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) acc.v[i][j] = Vec{};
  }
}

// acc += A[R x depth] B[depth x V vectors], rows of A `stride` apart. Asks for kFetch vectors from
// `next` on in each step.
template <int kFetch, int R, int V>
BESTOF_INLINE void accumulate(Accumulator<R, V>& acc, const float* a, long stride, long depth,
                              const float* b, const float* next) {
  for (long k = 0; k < depth; ++k) {
#pragma GCC unroll 4
    for (int j = 0; j < kFetch; ++j) __builtin_prefetch(next + (k * kFetch + j) * kLanes, 0, 2);
    Vec column[V];
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) {
      column[j] = load(b + k * kPanel + j * kLanes);
      __builtin_prefetch(b + (k + kAhead) * kPanel + j * kLanes, 0, 3);
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const Vec row = broadcast(a[i * stride + k]);
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) acc.v[i][j] += row * column[j];
    }
  }
}

// The same for rows at any place.
template <int R, int V>
BESTOF_INLINE void accumulate_rows(Accumulator<R, V>& acc, const float* const* rows, long offset,
                                   long depth, const float* b) {
  const float* a[R];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) a[i] = rows[i] + offset;
  for (long k = 0; k < depth; ++k) {
    Vec column[V];
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) {
      column[j] = load(b + k * kPanel + j * kLanes);
      __builtin_prefetch(b + (k + kAhead) * kPanel + j * kLanes, 0, 3);
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const Vec row = broadcast(a[i][k]);
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) acc.v[i][j] += row * column[j];
    }
  }
}

template <int R, int V>
BESTOF_INLINE void add(Accumulator<R, V>& sum, const Accumulator<R, V>& acc) {
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) sum.v[i][j] += acc.v[i][j];
  }
}

// acc = A B over all taps; B has `taps * depth` steps.
template <Walk kWalk, int R, int V>
BESTOF_INLINE void multiply(Accumulator<R, V>& acc, const TileRows<float>& rows, long taps,
                            long depth, const float* b, const float* next = nullptr) {
  clear(acc);
  Accumulator<R, V> sum;
  bool cut = false;
  long chain = 0;
  for (long tap = 0; tap < taps; ++tap) {
    const float* const* row = rows.row + tap * rows.leading;
    for (long k = 0; k < depth;) {
      if (chain == kChain) {
        if (!cut) clear(sum);
        add(sum, acc);
        clear(acc);
        chain = 0;
        cut = true;
      }
      const long steps = smaller(depth - k, kChain - chain);
      if constexpr (kWalk == Walk::kAnywhere) {
        accumulate_rows(acc, row, rows.offset + k, steps, b);
      } else {
        constexpr int kFetch = kWalk == Walk::kRegularFetching       ? kPanelVectors
                               : kWalk == Walk::kRegularFetchingHalf ? kPanelVectors / 2
                                                                     : 0;
        accumulate<kFetch>(acc, row[0] + rows.offset + k, rows.stride, steps, b, next);
        next += steps * kLanes * kFetch;
      }
      k += steps;
      b += steps * kPanel;
      chain += steps;
    }
  }
  if (cut) add(acc, sum);
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
