// A tile of a matrix product: up to kTileRows x kPanel results. They stay in registers over a block
// of depth, and are finished on their way to memory.
#pragma once
#include "conv/epilogue.h"
#include "gemm/micro_kernel.h"
#include "simd/turn.h"

namespace bestof {
namespace BESTOF_TARGET {

// The longest block of depth. Its panel of B streams from L2 for each tile. Blocks of half this
// length pass over C twice as often: 185 GFLOP/s instead of 201 (197 x 768 x 3072, Zen 5).
constexpr long kDepthBlock = 768;
static_assert(kDepthBlock <= kChain, "a block of depth is one chain of sums");

// The distance of copied rows: an odd number of cache lines, so that they fall into different sets.
constexpr long kCopyStride = kDepthBlock + 16;

// How the rows of a tile lie. Element (i, k) is at
//   kByRow    data[i * stride + k]
//   kByDepth  data[k * stride + i]
//   kCopied   data[i * kCopyStride + k], where constant distances need one address for all rows
enum class Lie { kByRow, kByDepth, kCopied };

// Where the results of a tile go. Result (i, j) belongs at c[i * stride + j], or if `turned` at
// c[j * stride + i].
struct Target {
  float* c;
  long stride;
  bool turned;
  const float* added;  // added to the results, at the strides of c; or null
  const float* bias;   // of the columns of the tile, or if `bias_of_rows` of its rows; or null
  bool bias_of_rows;
  Activation activation;
  float slope;
};

// acc += A[R x depth] B[depth x kPanel], where A lies by depth.
template <int R>
BESTOF_INLINE void accumulate_by_depth(Accumulator<R>& acc, const float* a, long stride, long depth,
                                       const float* b) {
  for (long k = 0; k < depth; ++k) {
    Vec column[kPanelVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j) {
      column[j] = load(b + k * kPanel + j * kLanes);
      __builtin_prefetch(b + (k + kAhead) * kPanel + j * kLanes, 0, 3);
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const Vec row = broadcast(a[k * stride + i]);
#pragma GCC unroll 4
      for (int j = 0; j < kPanelVectors; ++j) acc.v[i][j] += row * column[j];
    }
  }
}

// Asks for the lines that a tile will write, or read, when its sums are complete.
template <int R>
BESTOF_INLINE void fetch_target(const float* c, long stride, bool turned, long columns) {
  if (turned) {
    for (long j = 0; j < columns; ++j) __builtin_prefetch(c + j * stride, 1, 3);
    return;
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j)
      __builtin_prefetch(c + i * stride + smaller(j * kLanes, columns - 1), 1, 3);
  }
}

// Finishes n neighbours at `to`: results (i, j) to (i, j + n - 1), or if turned to (i + n - 1, j).
BESTOF_INLINE void finish_run(Vec v, const Target& t, long i, long j, long n) {
  const long at = t.turned ? j * t.stride + i : i * t.stride + j;
  if (t.added) v += load_first(t.added + at, n);
  if (t.bias) {
    if (t.bias_of_rows == t.turned) {
      v += load_first(t.bias + (t.turned ? i : j), n);
    } else {
      v += broadcast(t.bias[t.turned ? j : i]);
    }
  }
  store_first(t.c + at, activate(v, t.activation, t.slope), n);
}

// Finishes rows x columns sums that were stored `sums_stride` apart: of tiles that are turned, end
// in the middle of a vector, or have an activation that is seldom. Reads whole vectors of sums.
__attribute__((noinline)) inline void finish_stored(const float* sums, long sums_stride, long rows,
                                                    long columns, const Target& given) {
  const Target target = given;  // stores cannot change this copy
  if (!target.turned) {
    for (long i = 0; i < rows; ++i) {
      for (long j = 0; j < columns; j += kLanes)
        finish_run(load(sums + i * sums_stride + j), target, i, j, smaller(columns - j, kLanes));
    }
    return;
  }
  for (long i = 0; i < rows; i += kLanes) {
    const long n = smaller(rows - i, kLanes);
    for (long j = 0; j < columns; j += kLanes) {
      Vec tile[kLanes];
#pragma GCC unroll 16
      for (long k = 0; k < kLanes; ++k)
        tile[k] = k < n ? load(sums + (i + k) * sums_stride + j) : Vec{};
      turn(tile);
#pragma GCC unroll 16
      for (long k = 0; k < kLanes; ++k) {
        if (j + k < columns) finish_run(tile[k], target, i, j + k, n);
      }
    }
  }
}

template <int R>
BESTOF_INLINE void finish_tile(const Accumulator<R>& acc, const Target& t, long columns) {
  const bool plain = t.activation == Activation::kRelu || t.activation == Activation::kNone;
  if (t.turned || t.bias_of_rows || columns < kPanel || !plain) {
    float sums[R * kPanel];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kPanelVectors; ++j) store(sums + i * kPanel + j * kLanes, acc.v[i][j]);
    }
    return finish_stored(sums, kPanel, R, columns, t);
  }
  const Vec low = broadcast(t.activation == Activation::kRelu ? 0.0f : -__builtin_inff());
  float* const c = t.c;
  const float* const added = t.added;
  Vec bias[kPanelVectors];
#pragma GCC unroll 4
  for (int j = 0; j < kPanelVectors; ++j) bias[j] = t.bias ? load(t.bias + j * kLanes) : Vec{};
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j) {
      const long at = i * t.stride + j * kLanes;
      Vec v = acc.v[i][j] + bias[j];
      if (added) v += load(added + at);
      store(c + at, at_least(v, low));
    }
  }
}

// Computes and finishes one tile of R rows and `columns` <= kPanel columns of the panel `b`.
template <Lie kLie, int R>
__attribute__((noinline)) inline void product_tile(const float* a, long stride, const float* b,
                                                   long depth, long columns, const Target& t) {
  fetch_target<R>(t.c, t.stride, t.turned, columns);
  Accumulator<R> acc;
  clear(acc);
  if constexpr (kLie == Lie::kByRow) {
    accumulate<0>(acc, a, stride, depth, b, nullptr);
  } else if constexpr (kLie == Lie::kByDepth) {
    accumulate_by_depth(acc, a, stride, depth, b);
  } else {
    accumulate<0>(acc, a, kCopyStride, depth, b, nullptr);
  }
  finish_tile(acc, t, columns);
}

template <Lie kLie, int R>
BESTOF_INLINE void product_tile_of(long rows, const float* a, long stride, const float* b,
                                   long depth, long columns, const Target& t) {
  if constexpr (R > 0) {
    if (rows == R) return product_tile<kLie, R>(a, stride, b, depth, columns, t);
    product_tile_of<kLie, R - 1>(rows, a, stride, b, depth, columns, t);
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
