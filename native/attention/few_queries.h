// Attention of few queries, as of one new token against a cache of keys and values.
//
// Nothing is packed: keys and values are read once, where they lie, at the speed of memory. The
// rows of an item are the queries of all heads that share its keys and values.
#pragma once
#include <omp.h>

#include "attention/score_tile.h"
#include "attention/softmax.h"
#include "conv/operands.h"
#include "gemm/dots.h"
#include "simd/dot_block.h"
#include "simd/turn.h"

namespace bestof {
namespace BESTOF_TARGET {

// Keys of a block. Their scores stay in L1, and the exponentials of a block are taken at once.
constexpr long kFewBlock = 256;
constexpr long kFewStride = kFewBlock + 16;  // of rows of scores

// Rows that share what is loaded of keys and values.
constexpr int kFewRows = 2;

// The distance of copied rows of queries.
BESTOF_INLINE long query_stride(const Attention& p) {
  return round_up(p.size, 32) + 16;
}

inline long rows_of_item(const Attention& p) {
  return p.queries * (p.heads / larger(p.shared_heads, 1));
}

// The scratch of a thread, in floats from its begin.
struct FewLayout {
  long queries, scores, sums, states, factors, end;
};

inline FewLayout few_layout_of(const Attention& p) {
  const long rows = round_up(rows_of_item(p), kFewRows);
  FewLayout at;
  at.queries = 0;
  at.scores = at.queries + rows * query_stride(p);
  at.sums = at.scores + rows * kFewStride;
  at.states = at.sums + rows * query_stride(p);
  at.factors = at.states + 2 * rows;
  at.end = round_up(at.factors + rows, 32);
  return at;
}

// The scores of R rows for kLanes keys, of which `count` exist.
template <int R, class Element>
BESTOF_INLINE void score_keys(const float* queries, long stride, const Element* keys, long token,
                              long count, long size, float* scores) {
  constexpr int kAtOnce = 4;
  Vec sums[R][kLanes];
  for (long j = 0; j < kLanes; j += kAtOnce) {
    Vec some[R][kAtOnce] = {};
    const auto nothing = [](long) __attribute__((always_inline)) {};
    if (j + kAtOnce <= count) {
      add_dot_block(queries, stride, keys + j * token, token, size, some, nothing);
    } else {
      for (long one = j; one < count; ++one) {
        Vec single[R][1] = {};
        add_dot_block(queries, stride, keys + one * token, token, size, single, nothing);
        for (int i = 0; i < R; ++i) some[i][one - j] = single[i][0];
      }
    }
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
      for (int c = 0; c < kAtOnce; ++c) sums[i][j + c] = some[i][c];
    }
  }
#pragma GCC unroll 2
  for (int i = 0; i < R; ++i) {
    turn(sums[i]);
    Vec sum = sums[i][0];
#pragma GCC unroll 16
    for (int j = 1; j < kLanes; ++j) sum += sums[i][j];
    store(scores + i * kFewStride, sum);
  }
}

template <int R, class Element>
__attribute__((noinline)) inline void score_block(const float* queries, long stride,
                                                  const Element* keys, long token, long count,
                                                  long size, float* scores) {
  for (long j = 0; j < count; j += kLanes)
    score_keys<R>(queries, stride, keys + j * token, token, smaller(count - j, kLanes), size,
                  scores + j);
}

// sums = sums * factors + weights * values, for R rows and V vectors of columns, of which the last
// has `last` columns.
template <int R, int V, class Element>
BESTOF_INLINE void add_columns(const float* weights, const Element* values, long token, long keys,
                               const float* factors, float* sums, long stride, long last) {
  Vec sum[R][V];
#pragma GCC unroll 2
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sum[i][v] = load(sums + i * stride + v * kLanes) * factors[i];
  }
  for (long j = 0; j < keys; ++j) {
    Vec value[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v)
      value[v] = V > 1 || last == kLanes ? load(values + j * token + v * kLanes)
                                         : load_tail(values + j * token, last);
#pragma GCC unroll 2
    for (int i = 0; i < R; ++i) {
      const Vec weight = broadcast(weights[i * kFewStride + j]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[i][v] += weight * value[v];
    }
  }
#pragma GCC unroll 2
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(sums + i * stride + v * kLanes, sum[i][v]);
  }
}

template <int R, class Element>
__attribute__((noinline)) inline void add_values(const float* weights, const Element* values,
                                                 long token, long keys, const float* factors,
                                                 float* sums, long stride, long size) {
  constexpr long kWide = 4 * kLanes;
  long d = 0;
  for (; d + kWide <= size; d += kWide)
    add_columns<R, 4>(weights, values + d, token, keys, factors, sums + d, stride, kLanes);
  for (; d < size; d += kLanes)
    add_columns<R, 1>(weights, values + d, token, keys, factors, sums + d, stride,
                      smaller(size - d, kLanes));
}

// One item: the queries of the heads that share head `shared` of the keys and values.
template <class Element>
struct FewItem {
  const Attention& p;
  const AttentionCall& call;
  long batch, shared;
  float *queries, *scores, *sums, *factors;
  RowState* states;

  long head(long row) const { return shared * (p.heads / p.shared_heads) + row / p.queries; }
  MaskRow mask(long row, long key) const {
    return mask_at(p, call.mask, batch, head(row), row % p.queries, key);
  }

  void begin() const {
    const Element* q = static_cast<const Element*>(call.q);
    const long size = p.size, stride = query_stride(p);
    const Vec scale = broadcast(p.scale);
    for (long row = 0; row < rows_of_item(p); ++row) {
      const Element* from = q + offset(p.q, batch, head(row)) + row % p.queries * p.q.token;
      float* to = queries + row * stride;
      long d = 0;
      for (; d + kLanes <= size; d += kLanes) store(to + d, load(from + d) * scale);
      if (d < size) store_first(to + d, load_tail(from + d, size - d) * scale, size - d);
      for (d = 0; d < stride; ++d) sums[row * stride + d] = 0.0f;
      states[row] = {-kInfinity, 0.0f};
    }
  }

  // Replaces the scores of a block by weights.
  void weigh(long begin, long count) const {
    const long padded = round_up(count, 2 * kLanes);
    for (long row = 0; row < rows_of_item(p); ++row) {
      float* some = scores + row * kFewStride;
      const long seen = larger(0, smaller(count, seen_by(p, row % p.queries) - begin));
      if (call.mask || seen < padded) mask_row(some, padded, seen, mask(row, begin));
      factors[row] = weigh_row(some, some, padded, states[row]);
    }
  }

  template <int R>
  void block(long row, const Element* k, const Element* v, long count, bool scored) const {
    const long stride = query_stride(p);
    float* some = scores + row * kFewStride;
    if (!scored)
      return score_block<R>(queries + row * stride, stride, k, p.k.token, count, p.size, some);
    add_values<R>(some, v, p.v.token, count, factors + row, sums + row * stride, stride, p.size);
  }

  void blocks(const Element* k, const Element* v, long count, bool scored) const {
    const long rows = rows_of_item(p);
    long row = 0;
    for (; row + kFewRows <= rows; row += kFewRows) block<kFewRows>(row, k, v, count, scored);
    if (row < rows) block<1>(row, k, v, count, scored);
  }

  void end() const {
    Element* out = static_cast<Element*>(call.out);
    const long size = p.size, stride = query_stride(p);
    for (long row = 0; row < rows_of_item(p); ++row) {
      const RowState& state = states[row];
      const float factor = state.sum == 0.0f ? 1.0f : 1.0f / state.sum;
      Element* to = out + offset(p.out, batch, head(row)) + row % p.queries * p.out.token;
      const float* from = sums + row * stride;
      long d = 0;
      for (; d + kLanes <= size; d += kLanes) store(to + d, load(from + d) * factor);
      if (d < size) store_first(to + d, load_first(from + d, size - d) * factor, size - d);
      if (call.logsumexp)
        call.logsumexp[offset(p.logsumexp, batch, head(row)) +
                       row % p.queries * p.logsumexp.token] = logsumexp_of(state);
    }
  }

  void run() const {
    const Element* k = static_cast<const Element*>(call.k) + offset(p.k, batch, shared);
    const Element* v = static_cast<const Element*>(call.v) + offset(p.v, batch, shared);
    begin();
    const long keys = seen_by(p, p.queries - 1);
    for (long first = 0; first < keys; first += kFewBlock) {
      const long count = smaller(keys - first, kFewBlock);
      blocks(k + first * p.k.token, v + first * p.v.token, count, false);
      weigh(first, count);
      blocks(k + first * p.k.token, v + first * p.v.token, count, true);
    }
    end();
  }
};

template <class Element>
inline void attend_few(const Attention& p, const AttentionCall& call) {
  const FewLayout at = few_layout_of(p);
#pragma omp parallel for schedule(dynamic, 1) num_threads(call.threads)
  for (long index = 0; index < p.batch * p.shared_heads; ++index) {
    float* scratch = call.scratch + omp_get_thread_num() * at.end;
    const FewItem<Element> item = {p,
                                   call,
                                   index / p.shared_heads,
                                   index % p.shared_heads,
                                   scratch + at.queries,
                                   scratch + at.scores,
                                   scratch + at.sums,
                                   scratch + at.factors,
                                   reinterpret_cast<RowState*>(scratch + at.states)};
    item.run();
  }
}

inline long few_floats(const Attention& p, int threads) {
  return threads * few_layout_of(p).end;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
