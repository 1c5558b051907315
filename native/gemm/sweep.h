// A few rows times columns that lie side by side. kSteps steps of depth at a time are swept along a
// chunk of columns, whose sums lie in a buffer.
#pragma once
#include "gemm/panels.h"

namespace bestof {
namespace BESTOF_TARGET {

constexpr int kSteps = 8;
// Floats of the sums of a chunk, which lie in L2. If they fit into L1, memory is read in pieces so
// short that 8 rows take 1.4 times as long (4096 x 4096, Cascade Lake).
constexpr long kChunkSums = 32768;
// Sums that are kept in registers: of a vector of columns, or two if the rows are few.
constexpr int kRowsAtOnce = kTileRows > 6 ? 24 : 10;

inline long chunk_of(long rows, long columns, long threads) {
  const long share = round_up(divide_up(columns, threads), 64);
  return smaller(smaller(share, round_up(kChunkSums / rows, 64)), round_up(columns, 64));
}

// The distance of rows of sums: not a power of two, so that they fall into different sets.
inline long sums_stride(long chunk) {
  return chunk + 80;
}

// sums[R x V vectors] += x[kSteps x R]^T columns[kSteps x V vectors]. Unless `next` is 0, asks for
// what lies so many floats behind these columns.
template <int R, int V>
BESTOF_INLINE void add_steps(const float* x, long x_stride, const float* const* columns, long j,
                             float* sums, long stride, long next) {
  // Otherwise GCC keeps each x as a vector on the stack.
  if (R > 4) asm volatile("" : : : "memory");
  Vec sum[R][V];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) sum[i][v] = load(sums + i * stride + v * kLanes);
  }
#pragma GCC unroll 8
  for (int k = 0; k < kSteps; ++k) {
    Vec column[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      column[v] = load(columns[k] + j + v * kLanes);
      if (next) __builtin_prefetch(columns[k] + j + v * kLanes + next, 0, 2);
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const Vec row = broadcast(x[k * x_stride + i]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[i][v] += row * column[v];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) store(sums + i * stride + v * kLanes, sum[i][v]);
  }
}

// Adds `depth` steps of `count` columns to the sums of R rows; x is [depth][R].
template <int R>
inline void sweep(const float* x, const View& columns, long depth, long count, float* sums,
                  long stride) {
  constexpr int kFirst = R <= kRowsAtOnce ? R : (R + 1) / 2;
  constexpr int kVectors = 2 * kFirst <= kRowsAtOnce - 2 ? 2 : 1;
  constexpr long kWidth = kVectors * kLanes;
  const long whole = count / kWidth * kWidth;
  for (long k = 0; k < depth; k += kSteps) {
    const long steps = smaller(depth - k, kSteps);
    float factors[kSteps * R];
    const float* at[kSteps];
    for (long q = 0; q < kSteps; ++q) {
      at[q] = columns.data + (q < steps ? k + q : k) * columns.along;
      for (int i = 0; i < R; ++i) factors[q * R + i] = x[(q < steps ? k + q : k) * R + i];
    }
    if (steps == kSteps) {
      for (long j = 0; j < whole; j += kWidth) {
        add_steps<kFirst, kVectors>(factors, R, at, j, sums + j, stride, kSteps * columns.along);
        if constexpr (R > kFirst)
          add_steps<R - kFirst, kVectors>(factors + kFirst, R, at, j, sums + kFirst * stride + j,
                                          stride, 0);
      }
    }
    // The rest, column by column; steps that are missing are left out, for zero times infinity is
    // not zero.
    for (long q = 0; q < steps; ++q) {
      for (long j = steps == kSteps ? whole : 0; j < count; j += kLanes) {
        const long n = smaller(count - j, kLanes);
        const Vec column = load_first(at[q] + j, n);
        for (int i = 0; i < R; ++i) {
          float* sum = sums + i * stride + j;
          store(sum, load(sum) + broadcast(factors[q * R + i]) * column);
        }
      }
    }
  }
}

template <int R>
inline void sweep_of(long rows, const float* x, const View& columns, long depth, long count,
                     float* sums, long stride) {
  if constexpr (R > 0) {
    if (rows == R) return sweep<R>(x, columns, depth, count, sums, stride);
    sweep_of<R - 1>(rows, x, columns, depth, count, sums, stride);
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
