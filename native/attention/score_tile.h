// What both passes of attention share: scores of some rows of queries, and where operands lie.
#pragma once
#include "attention/forward.h"
#include "gemm/micro_kernel.h"

namespace bestof {
namespace BESTOF_TARGET {

// The distance of copied rows of queries.
BESTOF_INLINE long query_stride(const Attention& p) {
  return round_up(p.size, 32) + 16;
}

// How many keys query i sees.
BESTOF_INLINE long seen_by(const Attention& p, long i) {
  return p.causal ? smaller(p.keys, i + 1) : p.keys;
}

BESTOF_INLINE long offset(const HeadStrides& strides, long batch, long head) {
  return batch * strides.batch + head * strides.head;
}

// Copies rows of queries, multiplied by the scale.
inline void copy_queries(const Attention& p, const float* q, long rows, float* to) {
  const long size = p.size, stride = query_stride(p);
  const Vec scale = broadcast(p.scale);
  for (long i = 0; i < rows; ++i, q += p.q.token, to += stride) {
    long d = 0;
    for (; d + kLanes <= size; d += kLanes) store(to + d, load(q + d) * scale);
    if (d < size) store_first(to + d, load_first(q + d, size - d) * scale, size - d);
  }
}

// Scores of R rows for one panel of keys: products of rows `stride` apart and a packed panel.
template <long kScoreStride, int R>
__attribute__((noinline)) inline void score_tile(const float* queries, long stride,
                                                 const float* keys, long size, float* scores) {
  Accumulator<R> acc;
  clear(acc);
  for (long k = 0; k < size; k += kChain)
    accumulate<0>(acc, queries + k, stride, smaller(kChain, size - k), keys + k * kPanel, nullptr);
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j)
      store(scores + i * kScoreStride + j * kLanes, acc.v[i][j]);
  }
}

template <long kScoreStride, int R = kTileRows>
BESTOF_INLINE void score_rows(long rows, const float* queries, long stride, const float* keys,
                              long size, float* scores) {
  if constexpr (R > 0) {
    if (rows == R) return score_tile<kScoreStride, R>(queries, stride, keys, size, scores);
    score_rows<kScoreStride, R - 1>(rows, queries, stride, keys, size, scores);
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
