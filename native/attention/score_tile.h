// What both passes of attention share: scores of some rows of queries, and where operands lie.
#pragma once
#include "attention/forward.h"
#include "attention/softmax.h"
#include "gemm/pair_kernel.h"

namespace bestof {
namespace BESTOF_TARGET {

// How many keys query i sees.
BESTOF_INLINE long seen_by(const Attention& p, long i) {
  return p.causal ? smaller(p.keys, i + 1) : p.keys;
}

BESTOF_INLINE long offset(const HeadStrides& strides, long batch, long head) {
  return batch * strides.batch + head * strides.head;
}

// The mask of one query from `key` on; `mask` may be null.
BESTOF_INLINE MaskRow mask_at(const Attention& p, const void* mask, long batch, long head,
                              long query, long key) {
  const MaskStrides& s = p.mask;
  const long at = batch * s.batch + head * s.head + query * s.query + key * s.key;
  const long bytes = p.mask_element == Element::kBfloat16 ? sizeof(Bfloat16) : sizeof(float);
  return {mask ? static_cast<const char*>(mask) + at * bytes : nullptr, p.mask_element, s.key};
}

// Rows of a tile are copied as [chunk of depth][kTileRows][kStride]. Constant distances need one
// address for all rows; addresses per row cost the compiler a vector register, and a tenth of the
// speed of a tile (Zen 4). A row of a chunk has an odd number of cache lines.
template <class Factor>
struct Copied {
  static constexpr long kDepth = 256 / sizeof(Factor), kStride = 320 / sizeof(Factor);

  static long floats(long depth) {
    return divide_up(depth, kDepth) * kTileRows * kStride * sizeof(Factor) / sizeof(float);
  }
};

BESTOF_INLINE void copy_scaled(const Bfloat16* from, long count, float, Bfloat16* to) {
  __builtin_memcpy(to, from, count * sizeof(Bfloat16));
}

template <class Element>
BESTOF_INLINE void copy_scaled(const Element* from, long count, float scale, float* to) {
  long d = 0;
  for (; d + kLanes <= count; d += kLanes) store(to + d, load(from + d) * scale);
  if (d < count) store_first(to + d, load_first(from + d, count - d) * scale, count - d);
}

// Copies rows that lie `token` apart. float32 is multiplied by the scale; bfloat16 is not, which
// would round it.
template <class Element, class Factor>
inline void copy_tile(const Element* from, long token, long rows, long size, float scale,
                      Factor* to) {
  for (long k = 0; k < size; k += Copied<Factor>::kDepth) {
    const long count = smaller(size - k, Copied<Factor>::kDepth);
    for (long i = 0; i < rows; ++i)
      copy_scaled(from + i * token + k, count, scale, to + i * Copied<Factor>::kStride);
    to += kTileRows * Copied<Factor>::kStride;
  }
}

// acc += R rows, kStride apart, by a packed panel of `depth` steps: float32, or pairs of bfloat16.
template <long kStride, int R>
BESTOF_INLINE void add_rows(Accumulator<R>& acc, const float* rows, long depth,
                            const float* panel) {
  accumulate<0>(acc, rows, kStride, depth, panel, nullptr);
}

template <long kStride, int R>
BESTOF_INLINE void add_rows(Accumulator<R>& acc, const Bfloat16* rows, long depth,
                            const Bfloat16* panel) {
  accumulate_pairs<false>(acc, RegularPairs{rows, kStride}, depth, panel, nullptr);
}

// Scores of R copied rows for one panel of keys: scale times their products.
template <long kScoreStride, int R, class Factor>
__attribute__((noinline)) inline void score_tile(const Factor* queries, const Factor* keys,
                                                 long size, float scale, float* scores) {
  constexpr long kDepth = Copied<Factor>::kDepth, kStride = Copied<Factor>::kStride;
  Accumulator<R> acc;
  clear(acc);
  for (long k = 0; k < size; k += kDepth, queries += kTileRows * kStride)
    add_rows<kStride>(acc, queries, smaller(size - k, kDepth), keys + k * kPanel);
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j)
      store(scores + i * kScoreStride + j * kLanes, acc.v[i][j] * scale);
  }
}

template <long kScoreStride, int R = kTileRows, class Factor>
BESTOF_INLINE void score_rows(long rows, const Factor* queries, const Factor* keys, long size,
                              float scale, float* scores) {
  if constexpr (R > 0) {
    if (rows == R) return score_tile<kScoreStride, R>(queries, keys, size, scale, scores);
    score_rows<kScoreStride, R - 1>(rows, queries, keys, size, scale, scores);
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
