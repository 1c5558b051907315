// The micro-kernel on bfloat16: each step multiplies pairs of neighbours in depth, and adds both
// products to float32.
#pragma once
#include "gemm/micro_kernel.h"
#include "simd/bfloat16.h"

namespace bestof {
namespace BESTOF_TARGET {

// Where the rows of A lie, as in `accumulate` and `accumulate_rows`.
struct RegularPairs {
  const Bfloat16* first;
  long stride;
  BESTOF_INLINE const Bfloat16* at(int i) const { return first + i * stride; }
};

template <int R>
struct AnyPairs {
  const Bfloat16* row[R];
  BESTOF_INLINE const Bfloat16* at(int i) const { return row[i]; }
};

// acc += one pair of each row by one step of B, [kPanel] pairs. With kLast, the rows have a single
// element left there.
template <bool kLast, int R, int V, class Rows>
BESTOF_INLINE void add_pairs(Accumulator<R, V>& acc, const Rows& rows, long k, const Bfloat16* b) {
  VecInt column[V];
#pragma GCC unroll 4
  for (int j = 0; j < V; ++j) {
    column[j] = load_pairs(b + j * 2 * kLanes);
    __builtin_prefetch(b + kAhead * 2 * kPanel + j * 2 * kLanes, 0, 3);
  }
#if defined(__AVX512BF16__)
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
    const VecInt pair = VecInt{} + (kLast ? load_last(rows.at(i) + k) : load_pair(rows.at(i) + k));
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) {
      acc.v[i][j] = reinterpret_cast<Vec>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(acc.v[i][j]),
                                                           reinterpret_cast<__m512bh>(pair),
                                                           reinterpret_cast<__m512bh>(column[j])));
    }
  }
#else
  // The second of a pair first, as the instruction does.
#pragma GCC unroll 2
  for (int half = kLast ? 1 : 0; half < 2; ++half) {
    Vec part[V];
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) {
      part[j] =
          reinterpret_cast<Vec>(half ? column[j] << 16 : column[j] & static_cast<int>(0xFFFF0000));
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const Bfloat16* at = rows.at(i) + k + (half ? 0 : 1);
      const Vec row = reinterpret_cast<Vec>(VecInt{} + (load_last(at) << 16));
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) acc.v[i][j] += row * part[j];
    }
  }
#endif
}

// With kFetch, asks for a line from `next` on in each step.
template <bool kFetch, int R, int V, class Rows>
BESTOF_INLINE void accumulate_pairs(Accumulator<R, V>& acc, const Rows& rows, long depth,
                                    const Bfloat16* b, const Bfloat16* next) {
  long k = 0;
  for (; k + 2 <= depth; k += 2, b += 2 * kPanel) {
    if constexpr (kFetch) __builtin_prefetch(next + k * kLanes, 0, 2);
    add_pairs<false>(acc, rows, k, b);
  }
  if (k < depth) add_pairs<true>(acc, rows, k, b);
}

// acc = A B over all taps, like the function for float; B has `taps * divide_up(depth, 2)` steps.
// No chain is cut: float32 rounds far less than bfloat16 did.
template <Walk kWalk, int R, int V>
BESTOF_INLINE void multiply(Accumulator<R, V>& acc, const TileRows<Bfloat16>& rows, long taps,
                            long depth, const Bfloat16* b, const Bfloat16* next) {
  clear(acc);
  for (long tap = 0; tap < taps; ++tap, b += round_up(depth, 2) * kPanel) {
    const Bfloat16* const* row = rows.row + tap * rows.leading;
    if constexpr (kWalk == Walk::kAnywhere) {
      AnyPairs<R> any;
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) any.row[i] = row[i] + rows.offset;
      accumulate_pairs<false>(acc, any, depth, b, next);
    } else {
      constexpr bool kFetch = kWalk == Walk::kRegularFetching;
      accumulate_pairs<kFetch>(acc, RegularPairs{row[0] + rows.offset, rows.stride}, depth, b,
                               next);
    }
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
