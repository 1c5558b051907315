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

// The same for rows of any depth, in elements.
template <class Element = Bfloat16>
BESTOF_INLINE long row_stride(long depth) {
  constexpr long kLine = 64 / sizeof(Element);
  return (divide_up(depth, kLine) | 1) * kLine;
}

// How the rows of a tile lie. Element (i, k) is at
//   kByRow    data[i * stride + k]
//   kByDepth  data[k * stride + i]
//   kCopied   data[i * kCopyStride + k], where constant distances need one address for all rows
enum class Lie { kByRow, kByDepth, kCopied };

// Where the results of a tile go. Result (i, j) belongs at c[i * stride + j], or if `turned` at
// c[j * stride + i].
template <class Out>
struct Target {
  Out* c;
  long stride;
  bool turned;
  const Out* added;   // added to the results, at the strides of c; or null
  const float* bias;  // of the columns of the tile, or if `bias_of_rows` of its rows; or null
  bool bias_of_rows;
  const Out* factor;  // multiplies what the activation returns, at the strides of c; or null
  Activation activation;
  float slope;
};

// What is asked for, into L2, while a tile is multiplied: each step of depth asks for the line at
// `from`, which then moves on by `step` floats.
struct Fetch {
  const float* from;
  long step;
};

// A panel of B: packed at `from`, or if `to` is not null kPanel columns as they lie, `stride`
// apart. These are packed into `to` on the way: a copy beforehand waits for memory, which took a
// tenth of the time of 64 to 300 rows.
struct Panel {
  const float* from;
  long stride;
  float* to;
};

// Rows of B that are asked for in advance, into L2: rows that lie a multiple of 4 KiB apart would
// push each other out of L1.
constexpr long kRowsAhead = 24;

// acc += A[R x depth] B[depth x V vectors].
template <Lie kLie, bool kPack, int R, int V>
BESTOF_INLINE void accumulate_tile(Accumulator<R, V>& acc, const float* a, long stride, long depth,
                                   const Panel& panel, Fetch fetch) {
  const float* b = panel.from;
  float* to = panel.to;
  const long b_stride = kPack ? panel.stride : kPanel;
  if constexpr (kLie == Lie::kCopied) stride = kCopyStride;
  for (long k = 0; k < depth; ++k, b += b_stride) {
    if constexpr (!kPack) {
      __builtin_prefetch(fetch.from, 0, 2);
      fetch.from += fetch.step;
    }
    Vec column[V];
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) {
      column[j] = load(b + j * kLanes);
      if constexpr (kPack) {
        store(to + j * kLanes, column[j]);
        __builtin_prefetch(b + kRowsAhead * b_stride + j * kLanes, 0, 2);
      } else {
        __builtin_prefetch(b + kAhead * kPanel + j * kLanes, 0, 3);
      }
    }
    if constexpr (kPack) to += kPanel;
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const Vec row = broadcast(kLie == Lie::kByDepth ? a[k * stride + i] : a[i * stride + k]);
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) acc.v[i][j] += row * column[j];
    }
  }
}

// The target of the results from (i, j) on.
template <class Out>
BESTOF_INLINE Target<Out> target_at(const Target<Out>& t, long i, long j) {
  Target<Out> moved = t;
  const long at = t.turned ? j * t.stride + i : i * t.stride + j;
  moved.c += at;
  if (t.added) moved.added += at;
  if (t.factor) moved.factor += at;
  if (t.bias) moved.bias += t.bias_of_rows ? i : j;
  return moved;
}

// Asks for the lines that a tile will write, or read, when its sums are complete.
template <int R, class Out>
BESTOF_INLINE void fetch_target(const Out* c, long stride, bool turned, long columns) {
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
template <class Out>
BESTOF_INLINE void finish_run(Vec v, const Target<Out>& t, long i, long j, long n) {
  const long at = t.turned ? j * t.stride + i : i * t.stride + j;
  if (t.added) v += load_first(t.added + at, n);
  if (t.bias) {
    if (t.bias_of_rows == t.turned) {
      v += load_first(t.bias + (t.turned ? i : j), n);
    } else {
      v += broadcast(t.bias[t.turned ? j : i]);
    }
  }
  v = activate(v, t.activation, t.slope);
  if (t.factor) v *= load_first(t.factor + at, n);
  store_first(t.c + at, v, n);
}

// Finishes rows x columns sums that were stored `sums_stride` apart: of tiles that are turned, end
// in the middle of a vector, are multiplied, or have an activation that is seldom. Reads whole
// vectors of sums.
template <class Out>
__attribute__((noinline)) inline void finish_stored(const float* sums, long sums_stride, long rows,
                                                    long columns, const Target<Out>& given) {
  const Target<Out> target = given;  // stores cannot change this copy
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

// Whether V whole vectors of results lie side by side.
template <int V = kPanelVectors, class Out>
BESTOF_INLINE bool is_whole(const Target<Out>& t, long columns) {
  return !t.turned && !t.bias_of_rows && columns == V * kLanes;
}

// Whether results are whole vectors, and have at most a lower and an upper bound.
template <int V = kPanelVectors, class Out>
BESTOF_INLINE bool is_plain(const Target<Out>& t, long columns) {
  return is_whole<V>(t, columns) && is_bounded(t.activation) && !t.factor;
}

// Finishes rows x kPanel whole sums. With a call of the activation for each vector, a product with
// GELU took 1.25 times as long (1024 x 768 x 3072, bfloat16, one core of a Xeon with AMX).
template <Activation kActivation, class Out>
__attribute__((noinline)) inline void finish_whole(const float* sums, long rows,
                                                   const Target<Out>& given) {
  const Target<Out> t = given;  // stores cannot change this copy
  Vec bias[kPanelVectors];
#pragma GCC unroll 4
  for (int j = 0; j < kPanelVectors; ++j) bias[j] = t.bias ? load(t.bias + j * kLanes) : Vec{};
  for (long i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j) {
      const long at = i * t.stride + j * kLanes;
      Vec v = load(sums + i * kPanel + j * kLanes) + bias[j];
      if (t.added) v += load(t.added + at);
      v = activate_inline(v, kActivation, t.slope);
      if (t.factor) v *= load(t.factor + at);
      store(t.c + at, v);
    }
  }
}

// Finishes rows x columns sums that were stored kPanel apart.
template <class Out>
inline void finish_sums(const float* sums, long rows, const Target<Out>& t, long columns) {
  if (!is_whole(t, columns)) return finish_stored(sums, kPanel, rows, columns, t);
  switch (t.activation) {
#define BESTOF_ACTIVATION(enumerator, name, falls, result) \
  case Activation::enumerator:                             \
    return finish_whole<Activation::enumerator>(sums, rows, t);
#include "conv/activations.inc"
#undef BESTOF_ACTIVATION
  }
}

template <int R, int V, class Out>
BESTOF_INLINE void finish_tile(const Accumulator<R, V>& acc, const Target<Out>& t, long columns) {
  if (!is_plain<V>(t, columns)) {
    float sums[R * kPanel];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) store(sums + i * kPanel + j * kLanes, acc.v[i][j]);
    }
    return finish_sums(sums, R, t, columns);
  }
  const Bounds bounds(t.activation);
  Out* const c = t.c;
  const Out* const added = t.added;
  Vec bias[V];
#pragma GCC unroll 4
  for (int j = 0; j < V; ++j) bias[j] = t.bias ? load(t.bias + j * kLanes) : Vec{};
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) {
      const long at = i * t.stride + j * kLanes;
      Vec v = acc.v[i][j] + bias[j];
      if (added) v += load(added + at);
      store(c + at, bounds(v));
    }
  }
}

// Computes and finishes one tile of R rows and `columns` <= kPanel columns of a panel.
template <Lie kLie, bool kPack, int V, int R>
__attribute__((noinline)) inline void product_tile(const float* a, long stride, const Panel& panel,
                                                   long depth, long columns, const Target<float>& t,
                                                   const Fetch& fetch) {
  fetch_target<R>(t.c, t.stride, t.turned, columns);
  Accumulator<R, V> acc;
  clear(acc);
  accumulate_tile<kLie, kPack>(acc, a, stride, depth, panel, fetch);
  finish_tile(acc, t, columns);
}

template <Lie kLie, int R = kTileRows>
BESTOF_INLINE void product_tile_of(long rows, const float* a, long stride, const Panel& panel,
                                   long depth, long columns, const Target<float>& t,
                                   const Fetch& fetch) {
  if constexpr (R > 0) {
    constexpr int V = kPanelVectors;
    if (rows == R && panel.to)
      return product_tile<kLie, true, V, R>(a, stride, panel, depth, columns, t, fetch);
    // Of a packed panel, the half that has no columns is left out.
    if (rows == R && columns <= kLanes)
      return product_tile<kLie, false, 1, R>(a, stride, panel, depth, columns, t, fetch);
    if (rows == R)
      return product_tile<kLie, false, V, R>(a, stride, panel, depth, columns, t, fetch);
    product_tile_of<kLie, R - 1>(rows, a, stride, panel, depth, columns, t, fetch);
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
