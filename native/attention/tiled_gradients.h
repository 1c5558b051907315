// The gradients of attention of bfloat16 by tile registers, for the heads of queries that share one
// head of keys and values.
//
// Blocks of keys are packed, and strips of 32 queries pass over them. A strip computes its scores S
// and products G V^T, rounds weights W and slopes D to bfloat16, and adds D K to dQ at once. dV =
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
#include "attention/score_tile.h"
#include "attention/tile_products.h"
#include "attention/tile_slopes.h"
#include "conv/operands.h"

namespace bestof {
namespace BESTOF_TARGET {

// The most keys of a block, and the queries of a group: the strips that add to dK and dV together.
// Weights and slopes of both take 256 KB of L2.
constexpr long kGradientKeys = 256, kGroupQueries = 256;
static_assert(kGradientKeys % kSlopeKeys == 0 && kGroupQueries % kBlockHeight == 0);

// The distance of transposed sums, and of rows of slopes: odd numbers of cache lines.
constexpr long kTurnedStride = kGradientKeys + 16, kSlopeRow = kGradientKeys + kTileDepth;

// The distance of panels of pairs, in elements.
constexpr long kPairPanel = kGroupQueries * kPanel + 2 * kTileDepth;

// The scratch of a thread, in floats from its begin. Each part is a whole number of cache lines.
struct GradientLayout {
  long keys, values, key_rows;                      // of a block of keys
  long scores, products, slopes;                    // of a strip
  long weight_pairs, slope_pairs;                   // of a group and a block
  long q, gradient, turned_q, turned_gradient, dq;  // of a head of queries
  long logsumexp, sums;
  long dk, dv;  // turned; of a block, or of all blocks if heads share keys
  long end;
};

inline long turned_floats(const Attention& p) {
  return round_up(p.size, kTileDepth) * kTurnedStride;
}

inline GradientLayout gradient_layout_of(const Attention& p) {
  const long depth = round_up(p.size, kTileDepth), queries = round_up(p.queries, kBlockHeight);
  const long blocks = p.heads > p.shared_heads ? divide_up(p.keys, kGradientKeys) : 1;
  const long pairs = kGradientKeys / kPanel * kPairPanel / 2;
  GradientLayout at;
  at.keys = 0;
  at.values = at.keys + kGradientKeys * depth / 2;
  at.key_rows = at.values + kGradientKeys * depth / 2;
  at.scores = at.key_rows + kGradientKeys * depth / 2;
  at.products = at.scores + kBlockHeight * kSlopeStride;
  at.slopes = at.products + kBlockHeight * kSlopeStride;
  at.weight_pairs = at.slopes + kBlockHeight * kSlopeRow / 2;
  at.slope_pairs = at.weight_pairs + pairs;
  at.q = at.slope_pairs + pairs;
  at.gradient = at.q + queries * depth / 2;
  at.turned_q = at.gradient + queries * depth / 2;
  at.turned_gradient = at.turned_q + row_stride(queries) * depth / 2;
  at.dq = at.turned_gradient + row_stride(queries) * depth / 2;
  at.logsumexp = at.dq + queries * depth;
  at.sums = at.logsumexp + queries;
  at.dk = at.sums + queries;
  at.dv = at.dk + blocks * turned_floats(p);
  at.end = at.dv + blocks * turned_floats(p);
  return at;
}

// Copies rows, padded with zeros to whole tiles, into `to` and transposed into `turned`.
inline void copy_queries(const Bfloat16* from, long token, long count, long size, Bfloat16* to,
                         Bfloat16* turned, long turned_stride) {
  const long depth = round_up(size, kTileDepth);
  for (long first = 0; first < count; first += kBlockHeight) {
    for (long d = 0; d < depth; d += kLanes) {
      Vec pairs[kLanes];
#pragma GCC unroll 16
      for (long i = 0; i < kLanes; ++i) {
        VecInt bits[2];
#pragma GCC unroll 2
        for (long one = 0; one < 2; ++one) {
          const long row = first + 2 * i + one;
          bits[one] = row < count ? row_bits(from + row * token, d, size) : VecInt{};
          _mm256_store_si256(reinterpret_cast<__m256i*>(to + row * depth + d),
                             _mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(bits[one])));
        }
        pairs[i] = reinterpret_cast<Vec>(bits[0] | (bits[1] << 16));
      }
      turn(pairs);
#pragma GCC unroll 16
      for (long i = 0; i < kLanes; ++i)
        store_pairs(reinterpret_cast<Pair*>(turned + (d + i) * turned_stride + first),
                    reinterpret_cast<VecInt>(pairs[i]));
    }
    keep_tiles_awake();
  }
}

// Sums a * b over the numbers of each of `count` tokens. Up to 15 sums behind them become zeros.
inline void sum_products(const Bfloat16* a, long a_token, const Bfloat16* b, long b_token,
                         long count, long size, float* sums) {
  const auto add = [](Vec x, Vec y) { return x + y; };
  alignas(64) float rows[kLanes][kLanes];
  for (long first = 0; first < count; first += kLanes) {
    for (long i = 0; i < kLanes; ++i) {
      Vec sum = {};
      if (first + i < count) {
        const Bfloat16 *x = a + (first + i) * a_token, *y = b + (first + i) * b_token;
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
inline void write_zeros(Bfloat16* to, long token, long count, long size) {
  for (long i = 0; i < count; ++i) __builtin_memset(to + i * token, 0, size * sizeof(Bfloat16));
}

// Writes transposed sums, whose columns are paired, as `count` tokens times the scale.
inline void write_turned(const float* sums, float scale, Bfloat16* to, long token, long count,
                         long size) {
  for (long j = 0; j < count; j += kPanel) {
    for (long d = 0; d < size; d += kLanes) {
      for (long half = 0; half < 2; ++half) {
        Vec some[kLanes];
#pragma GCC unroll 16
        for (long i = 0; i < kLanes; ++i)
          some[i] = load(sums + (d + i) * kTurnedStride + j + half * kLanes);
        turn(some);
        for (long column = 0; column < kLanes; ++column) {
          const long key = j + paired_key(half, column);
          if (key < count)
            store_first(to + key * token + d, some[column] * scale, smaller(size - d, kLanes));
        }
      }
    }
    keep_tiles_awake();
  }
}

// One head of queries with its keys and values.
struct TiledGradients {
  const AttentionBackward& p;
  const AttentionBackwardCall& call;
  const GradientLayout& at;
  float* scratch;
  long batch, head, shared;

  const Attention& of() const { return p.of; }
  long depth() const { return round_up(of().size, kTileDepth); }
  long turned_stride() const { return row_stride(round_up(of().queries, kBlockHeight)); }
  Bfloat16* some(long place) const { return halves(scratch + place); }

  const Bfloat16* read(const void* x, const HeadStrides& s, long index) const {
    return halves(x) + offset(s, batch, index);
  }
  Bfloat16* result(void* x, const HeadStrides& s, long index) const {
    return halves(x) + offset(s, batch, index);
  }

  void copy() const {
    const long queries = of().queries, size = of().size;
    const Bfloat16 *gradient = read(call.gradient, p.gradient, head),
                   *q = read(call.q, of().q, head);
    copy_queries(q, of().q.token, queries, size, some(at.q), some(at.turned_q), turned_stride());
    copy_queries(gradient, p.gradient.token, queries, size, some(at.gradient),
                 some(at.turned_gradient), turned_stride());
    const long padded = round_up(queries, kBlockHeight);
    float *logsumexp = scratch + at.logsumexp, *sums = scratch + at.sums;
    for (long i = 0; i < padded; i += kLanes) store(sums + i, Vec{});
    sum_products(gradient, p.gradient.token, read(call.out, of().out, head), of().out.token,
                 queries, size, sums);
    const float* from = call.logsumexp + offset(of().logsumexp, batch, head);
    for (long i = 0; i < padded; ++i)
      logsumexp[i] = i < queries ? from[i * of().logsumexp.token] : 0.0f;
  }

  void pack(long block, long count) const {
    const Bfloat16* k = read(call.k, of().k, shared) + block * of().k.token;
    const Bfloat16* v = read(call.v, of().v, shared) + block * of().v.token;
    pack_tile_columns({k, of().k.token, 1}, of().size, count, some(at.keys));
    pack_tile_columns({v, of().v.token, 1}, of().size, count, some(at.values));
    pack_tile_columns({k, 1, of().k.token}, count, of().size, some(at.key_rows));
  }

  // Scales and masks the scores of a strip.
  void mask(float* scores, long first, long rows, long key, const StripQueries& queries,
            long count) const {
    for (long i = 0; i < rows; ++i, scores += kSlopeStride) {
      const long seen = smaller(queries.seen[i], count);
      for (long j = 0; j < count; j += kLanes) store(scores + j, load(scores + j) * of().scale);
      if (seen > 0)
        mask_row(scores, seen, seen, mask_at(of(), call.mask, batch, head, first + i, key));
    }
  }

  // Computes weights and slopes of a strip for the keys [block + begin, block + begin + count).
  template <int kRowTiles>
  void slope_keys(long first, long rows, long block, long stop, long begin, long count) const {
    float *scores = scratch + at.scores, *products = scratch + at.products;
    for (long j = 0; j < count; j += kPanel) {
      multiply_rows<false, kRowTiles>(some(at.q) + first * depth(), depth(),
                                      some(at.keys) + (begin + j) * depth(), depth(), scores + j,
                                      kSlopeStride);
      multiply_rows<false, kRowTiles>(some(at.gradient) + first * depth(), depth(),
                                      some(at.values) + (begin + j) * depth(), depth(),
                                      products + j, kSlopeStride);
    }
    StripQueries queries = {scratch + at.logsumexp + first, scratch + at.sums + first, {}};
    const long key = block + begin;
    for (long i = 0; i < rows; ++i) queries.seen[i] = smaller(stop, seen_by(of(), first + i)) - key;
    if (call.mask) mask(scores, first, rows, key, queries, count);
    const long pairs = begin / kPanel * kPairPanel + first % kGroupQueries * kPanel;
    slope_strip(queries, {scores, products, count, call.mask ? 1.0f : of().scale},
                {some(at.slopes) + begin, kSlopeRow, some(at.weight_pairs) + pairs,
                 some(at.slope_pairs) + pairs, kPairPanel});
  }

  void write_queries(long first, long rows) const {
    const float* from = scratch + at.dq + first * depth();
    Bfloat16* to = result(call.dq, p.dq, head) + first * p.dq.token;
    for (long i = 0; i < rows; ++i, from += depth(), to += p.dq.token) {
      for (long d = 0; d < of().size; d += kLanes)
        store_first(to + d, load(from + d) * of().scale, smaller(of().size - d, kLanes));
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
      const Bfloat16* panel = some(at.key_rows) + d * padded;
      if (block == 0) {
        multiply_rows<false, kRowTiles>(some(at.slopes), kSlopeRow, panel, used, to + d, depth());
      } else {
        multiply_rows<true, kRowTiles>(some(at.slopes), kSlopeRow, panel, used, to + d, depth());
      }
    }
    if (stop == all) write_queries(first, rows);
  }

  // Adds the products of some transposed rows and pairs of a group to the gradients of a panel.
  void add_panel(const Bfloat16* turned, const Bfloat16* pairs, long queries, bool adds,
                 float* to) const {
    for (long d = 0; d < depth(); d += kBlockHeight) {
      const Bfloat16* rows = turned + d * turned_stride();
      float* sums = to + d * kTurnedStride;
      if (adds) {
        multiply_rows<true, 2>(rows, turned_stride(), pairs, queries, sums, kTurnedStride);
      } else {
        multiply_rows<false, 2>(rows, turned_stride(), pairs, queries, sums, kTurnedStride);
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
      const long pairs = j / kPanel * kPairPanel + (first - group) * kPanel;
      const bool adds = !is_first_head || group > seeing;
      add_panel(some(at.turned_gradient) + first, some(at.weight_pairs) + pairs, end - first, adds,
                dv + j);
      add_panel(some(at.turned_q) + first, some(at.slope_pairs) + pairs, end - first, adds, dk + j);
    }
  }

  void write_keys(long block, long count) const {
    const long place = at.dv - at.dk > turned_floats(of()) ? block / kGradientKeys : 0;
    const long sums = place * turned_floats(of());
    write_turned(scratch + at.dk + sums, of().scale,
                 result(call.dk, p.dk, shared) + block * p.dk.token, p.dk.token, count, of().size);
    write_turned(scratch + at.dv + sums, 1.0f, result(call.dv, p.dv, shared) + block * p.dv.token,
                 p.dv.token, count, of().size);
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
    for (long block = 0; block < keys; block += kGradientKeys) {
      const long block_end = smaller(keys, block + kGradientKeys);
      pack(block, block_end - block);
      descend_block(block, block_end, is_first_head);
      if (is_last_head) write_keys(block, block_end - block);
    }
  }
};

inline void descend_tiled(const AttentionBackward& p, const AttentionBackwardCall& call) {
  const GradientLayout at = gradient_layout_of(p.of);
  const long sharing = p.of.heads / larger(p.of.shared_heads, 1);
#pragma omp parallel num_threads(call.threads)
  {
    const TileRegisters registers;
    float* scratch = call.scratch + omp_get_thread_num() * at.end;
#pragma omp for schedule(dynamic, 1)
    for (long item = 0; item < p.of.batch * p.of.shared_heads; ++item) {
      const long batch = item / p.of.shared_heads, shared = item % p.of.shared_heads;
      for (long one = 0; one < sharing; ++one) {
        const TiledGradients head = {p, call, at, scratch, batch, shared * sharing + one, shared};
        head.descend(one == 0, one == sharing - 1);
      }
    }
  }
}

inline long tiled_gradient_floats(const AttentionBackward& p, int threads) {
  return threads * gradient_layout_of(p.of).end;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
