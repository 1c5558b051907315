#include "attention/backward.h"

#include <omp.h>

#include "attention/score_tile.h"
#include "attention/softmax.h"
#include "attention/wide_tokens.h"
#include "gemm/outer_product.h"
#include "gemm/panels.h"
#include "simd/kernels.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// Keys and queries of a block. Its weights and the gradients of its scores take 64 KB of L2 each
// (AVX-512), and its keys and values, packed, 96 KB where a head has 64 numbers.
constexpr long kKeyBlock = 128;
constexpr long kQueryBlock = 112 / kTileRows * kTileRows;
static_assert(kKeyBlock % kPanel == 0);

// The distance of rows of weights: an odd number of cache lines, so that they fall into different
// sets.
constexpr long kWeightStride = kKeyBlock + 16;

// The scratch of a thread, in floats from its begin.
struct Layout {
  long keys, values, key_rows, rows, weights, slopes, sums;
  long q, k, v, gradient, out, dq, dk, dv;  // of bfloat16, widened
  long end;
};

Layout layout_of(const AttentionBackward& p) {
  Layout at;
  at.keys = 0;
  at.values = at.keys + kKeyBlock * round_up(p.of.size, 16);
  at.key_rows = at.values + kKeyBlock * round_up(p.of.size, 16);
  at.rows = at.key_rows + kKeyBlock * round_up(p.of.size, kPanel);
  at.weights = at.rows + Copied<float>::floats(p.of.size);
  at.slopes = at.weights + kQueryBlock * kWeightStride;
  at.sums = at.slopes + kQueryBlock * kWeightStride;
  at.q = round_up(at.sums + p.of.queries, 32);
  const bool widens = p.of.element == Element::kBfloat16;
  const long queries = widens ? p.of.queries * wide_stride(p.of.size) : 0;
  const long keys = widens ? p.of.keys * wide_stride(p.of.size) : 0;
  at.gradient = at.q + queries;
  at.out = at.gradient + queries;
  at.dq = at.out + queries;
  at.k = at.dq + queries;
  at.v = at.k + keys;
  at.dk = at.v + keys;
  at.dv = at.dk + keys;
  at.end = round_up(at.dv + keys, 32);
  return at;
}

// One head of queries with its keys and values. The names are those of backward.h.
struct Head {
  const float *gradient, *q, *k, *v, *out, *logsumexp;
  const void* mask;  // of all heads
  long batch, index;
  float *dq, *dk, *dv;
  float *keys, *values, *key_rows, *rows, *weights, *slopes, *sums;
};

// Queries or keys [begin, end).
struct Range {
  long begin, end;

  BESTOF_INLINE long count() const { return end - begin; }
};

// Sums gradient * result over the numbers of each query.
void sum_queries(const AttentionBackward& p, const Head& head) {
  for (long i = 0; i < p.of.queries; ++i) {
    const float* a = head.gradient + i * p.gradient.token;
    const float* b = head.out + i * p.of.out.token;
    Vec sum = {};
    long d = 0;
    for (; d + kLanes <= p.of.size; d += kLanes) sum += load(a + d) * load(b + d);
    if (d < p.of.size) sum += load_first(a + d, p.of.size - d) * load_first(b + d, p.of.size - d);
    head.sums[i] = sum_lanes(sum);
  }
}

// e^x. Unlike weight_of it takes scores above the logsumexp, which rounding gives: a large score
// may err by more than its exponential spans.
BESTOF_INLINE Vec weight_again(Vec x) {
  return x > broadcast(88.0f) ? broadcast(kInfinity) : weight_of(x);
}

// Replaces scores by weights, and what is in `slopes`, the products of a gradient and the values,
// by the gradients of the scores times the scale. Keys from `seen` on get zeros, up to `count`, a
// multiple of kLanes.
void weigh_again(float* scores, float* slopes, long seen, long count, float logsumexp, float sum,
                 float scale) {
  long j = 0;
  for (; j + kLanes <= seen; j += kLanes) {
    const Vec weight = weight_again(load(scores + j) - logsumexp);
    store(scores + j, weight);
    store(slopes + j, weight * (load(slopes + j) - sum) * scale);
  }
  if (j < seen) {
    const Vec weight = weight_again(load(scores + j) - logsumexp);
    const Vec slope = weight * (load(slopes + j) - sum) * scale;
    store(scores + j, Vec{});
    store(slopes + j, Vec{});
    store_first(scores + j, weight, seen - j);
    store_first(slopes + j, slope, seen - j);
    j += kLanes;
  }
  for (; j < count; j += kLanes) {
    store(scores + j, Vec{});
    store(slopes + j, Vec{});
  }
}

// Adds R rows of slopes times keys to `columns` <= kPanel columns of dq.
template <int R>
__attribute__((noinline)) inline void query_tile(const float* slopes, const float* keys, long count,
                                                 float* to, long stride, long columns) {
  Accumulator<R> acc;
  clear(acc);
  accumulate<0>(acc, slopes, kWeightStride, count, keys, nullptr);
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j) {
      const long n = larger(0, smaller(columns - j * kLanes, kLanes));
      float* at = to + i * stride + j * kLanes;
      if (n == kLanes) {
        store(at, load(at) + acc.v[i][j]);
      } else if (n > 0) {
        store_first(at, load_first(at, n) + acc.v[i][j], n);
      }
    }
  }
}

template <int R>
BESTOF_INLINE void query_rows(long rows, const float* slopes, const float* keys, long count,
                              float* to, long stride, long columns) {
  if constexpr (R > 0) {
    if (rows == R) return query_tile<R>(slopes, keys, count, to, stride, columns);
    query_rows<R - 1>(rows, slopes, keys, count, to, stride, columns);
  }
}

// A tile of queries by the keys of a block: weights, the gradients of the scores, and dq. `at` is
// the place of the first query in the block of queries.
void descend_tile(const AttentionBackward& p, const Head& head, Range keys, Range queries,
                  long at) {
  const Attention& of = p.of;
  const long size = of.size, rows = queries.count();
  // Rows of a tile see different numbers of keys: all sums go as far as the last row sees.
  const long count = smaller(keys.end, seen_by(of, queries.end - 1)) - keys.begin;
  float* weights = head.weights + at * kWeightStride;
  float* slopes = head.slopes + at * kWeightStride;
  copy_tile(head.q + queries.begin * of.q.token, of.q.token, rows, size, of.scale, head.rows);
  for (long j = 0; j < count; j += kPanel)
    score_rows<kWeightStride>(rows, head.rows, head.keys + j * size, size, 1.0f, weights + j);
  copy_tile(head.gradient + queries.begin * p.gradient.token, p.gradient.token, rows, size, 1.0f,
            head.rows);
  for (long j = 0; j < count; j += kPanel)
    score_rows<kWeightStride>(rows, head.rows, head.values + j * size, size, 1.0f, slopes + j);
  const long padded = round_up(keys.count(), kPanel);
  for (long i = 0; i < rows; ++i) {
    const long query = queries.begin + i;
    const long seen = larger(0, smaller(count, seen_by(of, query) - keys.begin));
    float* scores = weights + i * kWeightStride;
    if (head.mask)
      mask_row(scores, seen, seen,
               mask_at(of, head.mask, head.batch, head.index, query, keys.begin));
    weigh_again(scores, slopes + i * kWeightStride, seen, padded,
                head.logsumexp[query * of.logsumexp.token], head.sums[query], of.scale);
  }
  for (long d = 0; d < size; d += kPanel) {
    query_rows<kTileRows>(rows, slopes, head.key_rows + d * keys.count(), count,
                          head.dq + queries.begin * p.dq.token + d, p.dq.token,
                          smaller(kPanel, size - d));
  }
}

// Adds the transposed weights, or gradients of scores, of a block times rows of its queries to the
// gradients of its keys. Queries that see no key of a tile are left out.
void add_keys(const AttentionBackward& p, const float* weights, const OuterRows& rows, Range keys,
              Range queries, float* to, long stride) {
  const TileCut cut = cut_rows(keys.count());
  for (long d = 0; d < p.of.size; d += kPanel) {
    for (long tile = 0; tile < cut.tiles; ++tile) {
      const long key = cut.begin(tile), count = cut.begin(tile + 1) - key;
      const long first = p.of.causal ? larger(0, keys.begin + key - queries.begin) : 0;
      if (first >= queries.count()) continue;
      const OuterRows from = {nullptr, rows.base + first * rows.stride, rows.stride, d};
      outer_rows<kTileRows>(count, weights + first * kWeightStride + key, kWeightStride, from,
                            queries.count() - first, smaller(kPanel, p.of.size - d), false,
                            to + (keys.begin + key) * stride + d, stride);
    }
  }
}

void descend_block(const AttentionBackward& p, const Head& head, Range keys, Range queries) {
  const Attention& of = p.of;
  const TileCut tiles = cut_rows(queries.count());
  for (long tile = 0; tile < tiles.tiles; ++tile) {
    const Range rows = {queries.begin + tiles.begin(tile), queries.begin + tiles.begin(tile + 1)};
    if (seen_by(of, rows.end - 1) > keys.begin)
      descend_tile(p, head, keys, rows, tiles.begin(tile));
  }
  const float* gradient = head.gradient + queries.begin * p.gradient.token;
  add_keys(p, head.weights, {nullptr, gradient, p.gradient.token, 0}, keys, queries, head.dv,
           p.dv.token);
  const float* q = head.q + queries.begin * of.q.token;
  add_keys(p, head.slopes, {nullptr, q, of.q.token, 0}, keys, queries, head.dk, p.dk.token);
}

void descend(const AttentionBackward& p, const Head& head) {
  const Attention& of = p.of;
  sum_queries(p, head);
  for (long begin = 0; begin < of.keys; begin += kKeyBlock) {
    const Range keys = {begin, smaller(of.keys, begin + kKeyBlock)};
    const long first = of.causal ? begin : 0;  // the first query that sees one of these keys
    if (first >= of.queries) return;
    const float *k = head.k + begin * of.k.token, *v = head.v + begin * of.v.token;
    pack_columns(View{k, of.k.token, 1}, of.size, keys.count(), head.keys);
    pack_columns(View{v, of.v.token, 1}, of.size, keys.count(), head.values);
    pack_columns(View{k, 1, of.k.token}, keys.count(), of.size, head.key_rows);
    for (long at = first; at < of.queries; at += kQueryBlock)
      descend_block(p, head, keys, {at, smaller(of.queries, at + kQueryBlock)});
  }
}

// The problem of float32 that is computed in place of `p`, whose tokens are widened.
AttentionBackward wide_problem(const AttentionBackward& p) {
  AttentionBackward wide = p;
  if (p.of.element == Element::kFloat32) return wide;
  HeadStrides* const strides[] = {&wide.of.q,     &wide.of.k, &wide.of.v, &wide.of.out,
                                  &wide.gradient, &wide.dq,   &wide.dk,   &wide.dv};
  for (HeadStrides* one : strides) one->token = wide_stride(p.of.size);
  return wide;
}

template <class Element>
void run_heads(const AttentionBackward& p, const AttentionBackwardCall& call) {
  const Attention& of = p.of;
  const Layout at = layout_of(p);
  const AttentionBackward wide = wide_problem(p);
  const long sharing = of.heads / larger(of.shared_heads, 1), size = of.size;
#pragma omp parallel for schedule(dynamic, 1) num_threads(call.threads)
  for (long item = 0; item < of.batch * of.shared_heads; ++item) {
    const long batch = item / of.shared_heads, shared = item % of.shared_heads;
    float* scratch = call.scratch + omp_get_thread_num() * at.end;
    const auto read = [&](const void* x, const HeadStrides& s, long head, long count, long place) {
      const Element* from = static_cast<const Element*>(x) + offset(s, batch, head);
      return widened(Tokens<const Element>{from, s.token, count}, size, scratch + place);
    };
    const auto result = [&](void* x, const HeadStrides& s, long head, long count) {
      return Tokens<Element>{static_cast<Element*>(x) + offset(s, batch, head), s.token, count};
    };
    Head head = {};
    head.k = read(call.k, of.k, shared, of.keys, at.k);
    head.v = read(call.v, of.v, shared, of.keys, at.v);
    head.keys = scratch + at.keys;
    head.values = scratch + at.values;
    head.key_rows = scratch + at.key_rows;
    head.rows = scratch + at.rows;
    head.weights = scratch + at.weights;
    head.slopes = scratch + at.slopes;
    head.sums = scratch + at.sums;
    head.mask = call.mask;
    head.batch = batch;
    const Tokens<Element> dk = result(call.dk, p.dk, shared, of.keys),
                          dv = result(call.dv, p.dv, shared, of.keys);
    head.dk = cleared(dk, size, scratch + at.dk);
    head.dv = cleared(dv, size, scratch + at.dv);
    for (long h = shared * sharing; h < (shared + 1) * sharing; ++h) {
      head.gradient = read(call.gradient, p.gradient, h, of.queries, at.gradient);
      head.q = read(call.q, of.q, h, of.queries, at.q);
      head.out = read(call.out, of.out, h, of.queries, at.out);
      head.logsumexp = call.logsumexp + offset(of.logsumexp, batch, h);
      head.index = h;
      const Tokens<Element> dq = result(call.dq, p.dq, h, of.queries);
      head.dq = cleared(dq, size, scratch + at.dq);
      descend(wide, head);
      finish(head.dq, size, dq);
    }
    finish(head.dk, size, dk);
    finish(head.dv, size, dv);
  }
}

void run(const AttentionBackward& p, const AttentionBackwardCall& call) {
  if (p.of.element == Element::kBfloat16) return run_heads<Bfloat16>(p, call);
  run_heads<float>(p, call);
}

long scratch_floats(const AttentionBackward& p, int threads) {
  return threads * layout_of(p).end;
}

}  // namespace

const AttentionBackwardPass attention_backward = {run, scratch_floats};

}  // namespace BESTOF_TARGET
}  // namespace bestof
