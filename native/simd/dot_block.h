// Dot products of a few rows with a few columns, all at once.
#pragma once
#include "simd/bfloat16.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {

// Not inlined, like the other functions for tails.
template <class Element>
__attribute__((noinline)) inline Vec load_tail(const Element* p, long n) {
  return load_first(p, n);
}

// Adds the products of R rows with K columns over `depth` elements to `sum`, lane by lane. Every
// lane sums every kLanes-th product: no chain needs to be cut. After the columns' vectors at k are
// loaded, `fetch(k)` may ask for memory in advance. It must be always_inline: GCC removes the call
// of a function that only prefetches.
template <int R, int K, class Element, class Fetch>
BESTOF_INLINE void add_dot_block(const float* rows, long row_stride, const Element* columns,
                                 long column_stride, long depth, Vec (&sum)[R][K],
                                 const Fetch& fetch) {
  long k = 0;
  for (; k + kLanes <= depth; k += kLanes) {
    Vec column[K];
#pragma GCC unroll 8
    for (int j = 0; j < K; ++j) column[j] = load(columns + j * column_stride + k);
    fetch(k);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Vec row = load(rows + i * row_stride + k);
#pragma GCC unroll 8
      for (int j = 0; j < K; ++j) sum[i][j] += row * column[j];
    }
  }
  if (k == depth) return;
  for (int j = 0; j < K; ++j) {
    const Vec column = load_tail(columns + j * column_stride + k, depth - k);
    for (int i = 0; i < R; ++i)
      sum[i][j] += load_tail(rows + i * row_stride + k, depth - k) * column;
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
