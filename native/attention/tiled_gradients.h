// The gradients of attention by products of bfloat16, for the heads of queries that share one head
// of keys and values. The operands are bfloat16 (whole_numbers.h), or float32 as parts of it
// (split_numbers.h). Tile registers multiply them, or vectors of pairs.
//
// Blocks of keys are packed, and strips of 32 queries pass over them. A strip computes its scores S
// and products G V^T, turns weights W and slopes D into bfloat16, and adds D K to dQ at once. dV =
// W^T G and dK = D^T Q follow for some strips together, so that each load of their sums serves a
// long product. These sums are kept transposed: then W and D are the right side of a product, which
// takes them as pairs of neighbouring queries.
//
// Depth is padded with zeros to a multiple of 32: numbers of a head, queries and keys. Weights and
// slopes of absent or hidden keys are zeros, so a tile that is partly hidden adds nothing. A NaN
// can reach what lies in the same tile of 32 x 32 scores, as in the forward pass.
#pragma once
#include <omp.h>

#include "attention/backward.h"
#include "attention/gradient_layout.h"
#include "attention/score_tile.h"
#include "conv/operands.h"

namespace bestof {
namespace BESTOF_TARGET {

// Sums a * b over the numbers of each of `count` tokens. Up to 15 sums behind them become zeros.
template <class Element>
inline void sum_products(const Element* a, long a_token, const Element* b, long b_token, long count,
                         long size, float* sums) {
  const auto add = [](Vec x, Vec y) { return x + y; };
  alignas(64) float rows[kLanes][kLanes];
  for (long first = 0; first < count; first += kLanes) {
    for (long i = 0; i < kLanes; ++i) {
      Vec sum = {};
      if (first + i < count) {
        const Element *x = a + (first + i) * a_token, *y = b + (first + i) * b_token;
        long d = 0;
        for (; d + kLanes <= size; d += kLanes) sum += load(x + d) * load(y + d);
        if (d < size) sum += load_first(x + d, size - d) * load_first(y + d, size - d);
      }
      store(rows[i], sum);
    }
    store(sums + first, fold_rows(rows, add));
    keep_tiles_awake();
  }
}

// Writes `count` tokens of zeros.
template <class Element>
inline void write_zeros(Element* to, long token, long count, long size) {
  for (long i = 0; i < count; ++i) __builtin_memset(to + i * token, 0, size * sizeof(Element));
}

// Writes transposed sums as `count` tokens: power(sum times the scale).
template <class Numbers, class Power>
inline void write_turned(const float* sums, float scale, const Power& power,
                         typename Numbers::Element* to, long token, long count, long size) {
  for (long j = 0; j < count; j += kPanel) {
    for (long d = 0; d < size; d += kLanes) {
      for (long half = 0; half < 2; ++half) {
        Vec some[kLanes];
#pragma GCC unroll 16
        for (long i = 0; i < kLanes; ++i)
          some[i] = load(sums + (d + i) * kTurnedStride + j + half * kLanes);
        turn(some);
        for (long column = 0; column < kLanes; ++column) {
          const long key = j + Numbers::key_of(half, column);
          if (key < count)
            store_first(to + key * token + d, power(some[column] * scale),
                        smaller(size - d, kLanes));
        }
      }
    }
    keep_tiles_awake();
  }
}

// One head of queries with its keys and values.
template <class Numbers>
struct TiledGradients {
  using Element = typename Numbers::Element;

  const AttentionBackward& p;
  const AttentionBackwardCall& call;
  const GradientLayout& at;
  float* scratch;
  long batch, head, shared;
  const Numbers& numbers;

  static constexpr long kCount = Numbers::kPartCount, kGroupQueries = Numbers::kGroupQueries;
  static constexpr long kPanelPairs = kPairPanel<Numbers>;

  const Attention& of() const { return p.of; }
  long depth() const { return round_up(of().size, kTileDepth); }
  Bfloat16* some(long place) const { return halves(scratch + place); }

  const Element* read(const void* x, const HeadStrides& s, long index) const {
    return static_cast<const Element*>(x) + offset(s, batch, index);
  }
  Element* result(void* x, const HeadStrides& s, long index) const {
    return static_cast<Element*>(x) + offset(s, batch, index);
  }

  void copy() const {
    const long queries = of().queries, size = of().size;
    const Element *gradient = read(call.gradient, p.gradient, head),
                  *q = read(call.q, of().q, head);
    numbers.copy_q(q, of().q.token, queries, size, some(at.q), some(at.turned_q));
    numbers.copy_gradient(gradient, p.gradient.token, queries, size, some(at.gradient),
                          some(at.turned_gradient));
    const long padded = round_up(queries, kBlockHeight);
    float *logsumexp = scratch + at.logsumexp, *sums = scratch + at.sums;
    for (long i = 0; i < padded; i += kLanes) store(sums + i, Vec{});
    sum_products(gradient, p.gradient.token, read(call.out, of().out, head), of().out.token,
                 queries, size, sums);
    numbers.scale_sums(sums, padded);
    const float* from = call.logsumexp + offset(of().logsumexp, batch, head);
    for (long i = 0; i < padded; ++i)
      logsumexp[i] = i < queries ? from[i * of().logsumexp.token] : 0.0f;
  }

  void pack(long block, long count) const {
    const Element* k = read(call.k, of().k, shared) + block * of().k.token;
    const Element* v = read(call.v, of().v, shared) + block * of().v.token;
    numbers.pack_keys(k, of().k.token, of().size, count, some(at.keys), some(at.key_rows));
    numbers.pack_values(v, of().v.token, of().size, count, some(at.values));
  }

  // Scales and masks the scores of a strip.
  void mask(float* scores, long first, long rows, long key, const StripQueries& queries,
            long count) const {
    const Vec scale = broadcast(numbers.score_scale(of().scale));
    for (long i = 0; i < rows; ++i, scores += kSlopeStride) {
      const long seen = smaller(queries.seen[i], count);
      for (long j = 0; j < count; j += kLanes) store(scores + j, load(scores + j) * scale);
      if (seen > 0)
        mask_row(scores, seen, seen, mask_at(of(), call.mask, batch, head, first + i, key));
    }
  }

  // Computes weights and slopes of a strip for the keys [block + begin, block + begin + count).
  template <int kRowTiles>
  void slope_keys(long first, long rows, long block, long stop, long begin, long count) const {
    float *scores = scratch + at.scores, *products = scratch + at.products;
    for (long j = 0; j < count; j += kPanel) {
      const long row = first * depth() * kCount, panel = (begin + j) * depth() * kCount;
      Numbers::template multiply<false, kRowTiles>(some(at.q) + row, depth(), some(at.keys) + panel,
                                                   depth(), scores + j, kSlopeStride);
      Numbers::template multiply<false, kRowTiles>(some(at.gradient) + row, depth(),
                                                   some(at.values) + panel, depth(), products + j,
                                                   kSlopeStride);
    }
    StripQueries queries = {scratch + at.logsumexp + first, scratch + at.sums + first, {}};
    const long key = block + begin;
    for (long i = 0; i < rows; ++i) queries.seen[i] = smaller(stop, seen_by(of(), first + i)) - key;
    if (call.mask) mask(scores, first, rows, key, queries, count);
    const long pairs = (begin / kPanel * kPanelPairs + first % kGroupQueries * kPanel) * kCount;
    const float scale = call.mask ? 1.0f : numbers.score_scale(of().scale);
    numbers.slope(
        queries, {scores, products, count, scale, numbers.slope_power(of().scale)},
        {Numbers::slopes_at(some(at.slopes), begin), kSlopeRow, some(at.weight_pairs) + pairs,
         some(at.slope_pairs) + pairs, kPanelPairs * kCount});
  }

  void write_queries(long first, long rows) const {
    const auto power = numbers.query_power();
    const Vec scale = broadcast(numbers.result_scale(of().scale));
    const float* from = scratch + at.dq + first * depth();
    Element* to = result(call.dq, p.dq, head) + first * p.dq.token;
    for (long i = 0; i < rows; ++i, from += depth(), to += p.dq.token) {
      for (long d = 0; d < of().size; d += kLanes)
        store_first(to + d, power(load(from + d) * scale), smaller(of().size - d, kLanes));
    }
  }

  // Queries [first, first + rows) by the keys [block, block_end): weights, slopes and dQ.
  template <int kRowTiles>
  __attribute__((noinline)) void descend_strip(long first, long rows, long block,
                                               long block_end) const {
    // Rows of a strip see different numbers of keys: all sums go as far as the last row sees.
    const long all = seen_by(of(), first + rows - 1), stop = smaller(block_end, all);
    const long used = round_up(stop - block, kPanel);
    for (long begin = 0; begin < used; begin += kSlopeKeys)
      slope_keys<kRowTiles>(first, rows, block, stop, begin, smaller(used - begin, kSlopeKeys));
    const long padded = round_up(block_end - block, kPanel);
    float* to = scratch + at.dq + first * depth();
    for (long d = 0; d < depth(); d += kPanel) {
      const Bfloat16* panel = some(at.key_rows) + d * padded * kCount;
      if (block == 0) {
        Numbers::template multiply<false, kRowTiles>(some(at.slopes), kSlopeRow, panel, used,
                                                     to + d, depth());
      } else {
        Numbers::template multiply<true, kRowTiles>(some(at.slopes), kSlopeRow, panel, used, to + d,
                                                    depth());
      }
    }
    if (stop == all) write_queries(first, rows);
  }

  // Adds the products of some transposed rows and pairs of a group to the gradients of a panel.
  // first: the first of these queries.
  void add_panel(const Bfloat16* turned, const Bfloat16* pairs, long first, long queries, bool adds,
                 float* to) const {
    const long stride = Numbers::turned_stride(of().queries);
    for (long d = 0; d < depth(); d += kBlockHeight) {
      const Bfloat16* rows = Numbers::turned_at(turned, d, first, of().queries);
      float* sums = to + d * kTurnedStride;
      if (adds) {
        Numbers::template multiply<true, 2>(rows, stride, pairs, queries, sums, kTurnedStride);
      } else {
        Numbers::template multiply<false, 2>(rows, stride, pairs, queries, sums, kTurnedStride);
      }
    }
  }

  // Adds to dK and dV of a block what the queries [group, group_end) give. Strips that see no key
  // of a panel are left out.
  void add_keys(long group, long group_end, long block, long block_end, bool is_first_head) const {
    const long end = round_up(group_end, kBlockHeight);
    const long place = at.dv - at.dk > turned_floats(of()) ? block / kGradientKeys : 0;
    float *dk = scratch + at.dk + place * turned_floats(of()),
          *dv = scratch + at.dv + place * turned_floats(of());
    for (long j = 0; j < block_end - block; j += kPanel) {
      const long seeing = of().causal ? block + j : 0, first = larger(group, seeing);
      if (first >= end) return;
      const long pairs = (j / kPanel * kPanelPairs + (first - group) * kPanel) * kCount;
      const bool adds = !is_first_head || group > seeing;
      add_panel(some(at.turned_gradient), some(at.weight_pairs) + pairs, first, end - first, adds,
                dv + j);
      add_panel(some(at.turned_q), some(at.slope_pairs) + pairs, first, end - first, adds, dk + j);
    }
  }

  void write_keys(long block, long count) const {
    const long place = at.dv - at.dk > turned_floats(of()) ? block / kGradientKeys : 0;
    const long sums = place * turned_floats(of());
    write_turned<Numbers>(scratch + at.dk + sums, numbers.result_scale(of().scale),
                          numbers.key_power(), result(call.dk, p.dk, shared) + block * p.dk.token,
                          p.dk.token, count, of().size);
    write_turned<Numbers>(scratch + at.dv + sums, 1.0f, numbers.value_power(),
                          result(call.dv, p.dv, shared) + block * p.dv.token, p.dv.token, count,
                          of().size);
  }

  void descend_block(long block, long block_end, bool is_first_head) const {
    // Blocks and groups begin at whole strips.
    const long begin = of().causal ? block / kGroupQueries * kGroupQueries : 0;
    for (long group = begin; group < of().queries; group += kGroupQueries) {
      const long group_end = smaller(of().queries, group + kGroupQueries);
      for (long first = group; first < group_end; first += kBlockHeight) {
        const long rows = smaller(group_end - first, kBlockHeight);
        if (seen_by(of(), first + rows - 1) <= block) continue;
        if (rows > kTileHeight) {
          descend_strip<2>(first, rows, block, block_end);
        } else {
          descend_strip<1>(first, rows, block, block_end);
        }
      }
      add_keys(group, group_end, block, block_end, is_first_head);
    }
  }

  // The first head of queries clears the sums of its keys, and the last one writes them.
  void descend(bool is_first_head, bool is_last_head) const {
    const long keys = of().queries > 0 ? seen_by(of(), of().queries - 1) : 0;
    if (keys == 0) write_zeros(result(call.dq, p.dq, head), p.dq.token, of().queries, of().size);
    if (is_last_head) {
      const long rest = of().keys - keys;
      write_zeros(result(call.dk, p.dk, shared) + keys * p.dk.token, p.dk.token, rest, of().size);
      write_zeros(result(call.dv, p.dv, shared) + keys * p.dv.token, p.dv.token, rest, of().size);
    }
    if (keys == 0) return;
    copy();
    for (long block = 0; block < keys && !numbers.has_failed(); block += kGradientKeys) {
      const long block_end = smaller(keys, block + kGradientKeys);
      pack(block, block_end - block);
      descend_block(block, block_end, is_first_head);
      if (is_last_head) write_keys(block, block_end - block);
    }
  }
};

// Calls work(batch, shared, scratch) for every head of keys and values, in parallel. A thread has
// `floats` of scratch.
template <class Work>
inline void each_head_of_keys(const AttentionBackward& p, const AttentionBackwardCall& call,
                              long floats, const Work& work) {
#pragma omp parallel num_threads(call.threads)
  {
    const TileRegisters registers;
    float* scratch = call.scratch + omp_get_thread_num() * floats;
#pragma omp for schedule(dynamic, 1)
    for (long item = 0; item < p.of.batch * p.of.shared_heads; ++item)
      work(item / p.of.shared_heads, item % p.of.shared_heads, scratch);
  }
}

// Computes the gradients of all heads that share one head of keys and values.
template <class Numbers>
inline void descend_heads(const AttentionBackward& p, const AttentionBackwardCall& call,
                          const GradientLayout& at, const Numbers& numbers, long batch, long shared,
                          float* scratch) {
  const long sharing = p.of.heads / p.of.shared_heads;
  for (long one = 0; one < sharing && !numbers.has_failed(); ++one) {
    const TiledGradients<Numbers> head = {
        p, call, at, scratch, batch, shared * sharing + one, shared, numbers};
    head.descend(one == 0, one == sharing - 1);
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
