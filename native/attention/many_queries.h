// Attention of many queries: keys and values are packed block by block, and tiles of queries pass
// over them.
//
// Operands of bfloat16 are multiplied in pairs where the instruction set does that at once; there
// the weights are rounded to bfloat16 too. Elsewhere they are packed as float32.
#pragma once
#include <omp.h>

#include "attention/score_tile.h"
#include "attention/softmax.h"
#include "conv/operands.h"
#include "gemm/pair_panels.h"

namespace bestof {
namespace BESTOF_TARGET {

// The most keys of a block. Their scores for one tile of rows take 14 KB of L1 (AVX-512), and their
// keys and values 128 KB of L2 where a head has 64 numbers of float32.
constexpr long kKeyBlock = 256;
static_assert(kKeyBlock <= kChain && kKeyBlock % kPanel == 0);

// The distance of rows of scores: an odd number of cache lines, so that they fall into different
// sets.
constexpr long kScoreStride = kKeyBlock + 16;

// Parts that a thread gets at least, so that threads end at nearly the same time.
constexpr long kPartsPerThread = 4;

// Parts into which the queries of a head are cut. A part packs all keys, so few are best.
inline long parts_of(const Attention& p, int threads) {
  const long heads = larger(p.batch * p.heads, 1);
  const long wanted = divide_up(kPartsPerThread * threads, heads);
  return larger(1, threads == 1 ? 1 : smaller(wanted, divide_up(p.queries, 2 * kTileRows)));
}

// The scratch of a thread, in floats from its begin. Sums of bfloat16 results are kept in float32
// if there are several blocks of keys.
struct ManyLayout {
  long keys, values, queries, scores, sums, states, end;
};

inline ManyLayout many_layout_of(const Attention& p, int threads) {
  ManyLayout at;
  const long rows = divide_up(p.queries, parts_of(p, threads)) + 1;
  const bool sums = p.element == Element::kBfloat16 && p.keys > kKeyBlock;
  at.keys = 0;
  at.values = at.keys + kKeyBlock * round_up(p.size, 16);
  at.queries = at.values + kKeyBlock * round_up(p.size, kPanel);
  at.scores = at.queries + Copied<float>::floats(p.size);
  at.sums = at.scores + kTileRows * kScoreStride;
  at.states = at.sums + (sums ? rows * round_up(p.size, 16) : 0);
  at.end = round_up(at.states + 2 * rows, 32);
  return at;
}

// How results become those with one more block: (old * before + sums) * after. The compiler can
// fuse only one product and sum here. So the bits are the same wherever a compiler fuses, and
// whatever the number of threads.
struct Factors {
  float before[kTileRows], after[kTileRows];
  bool first, last;  // of the blocks that these rows see
};

// Where a tile of results goes: the sums so far, and after the last block the results.
template <class Element>
struct TileResults {
  float* sums;
  long sums_stride;
  Element* out;
  long stride;
};

// n <= kLanes results of row i from column j on.
template <class Element>
BESTOF_INLINE void finish_values(Vec v, const TileResults<Element>& to, const Factors& factors,
                                 int i, long j, long n) {
  float* sums = to.sums + i * to.sums_stride + j;
  if (!factors.first) v += (n == kLanes ? load(sums) : load_first(sums, n)) * factors.before[i];
  if (factors.last) {
    v *= factors.after[i];
    Element* out = to.out + i * to.stride + j;
    n == kLanes ? store(out, v) : store_first(out, v, n);
  } else {
    n == kLanes ? store(sums, v) : store_first(sums, v, n);
  }
}

// Adds R rows of weights, in the place of their scores, times values to `columns` <= kPanel columns
// of the results.
template <int R, class Element, class Factor>
__attribute__((noinline)) inline void value_tile(const Factor* weights, const Factor* values,
                                                 long keys, const Factors& factors,
                                                 const TileResults<Element>& to, long columns) {
  constexpr long kWeightStride = kScoreStride * (sizeof(float) / sizeof(Factor));
  Accumulator<R> acc;
  clear(acc);
  add_rows<kWeightStride>(acc, weights, keys, values);
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j) {
      const long n = smaller(columns - j * kLanes, kLanes);
      if (n > 0) finish_values(acc.v[i][j], to, factors, i, j * kLanes, n);
    }
  }
}

template <int R = kTileRows, class Element, class Factor>
BESTOF_INLINE void value_rows(long rows, const Factor* weights, const Factor* values, long keys,
                              const Factors& factors, const TileResults<Element>& to,
                              long columns) {
  if constexpr (R > 0) {
    if (rows == R) return value_tile<R>(weights, values, keys, factors, to, columns);
    value_rows<R - 1>(rows, weights, values, keys, factors, to, columns);
  }
}

// Asks for rows that will be needed soon. Exponentials leave memory idle meanwhile: without this,
// copies of queries took a tenth of the time (1,024 tokens, Cascade Lake).
template <class Element>
BESTOF_INLINE void fetch_rows(const Element* from, long stride, long rows, long size) {
  constexpr long kLine = 64 / sizeof(Element);
  for (long i = 0; i < rows; ++i) {
    for (long d = 0; d < size; d += kLine) __builtin_prefetch(from + i * stride + d, 1, 3);
  }
}

// Queries [begin, end) of one head.
template <class Element, class Factor>
struct ManyQueries {
  static constexpr bool kPairs = sizeof(Factor) == sizeof(Bfloat16);

  const Attention& p;
  const AttentionCall& call;
  long batch, head, begin, end;
  const Element *q, *k, *v;
  Element* out;
  Factor *keys, *values, *queries;
  float *scores, *sums;
  RowState* states;

  // Pairs are not scaled beforehand: that would round them.
  float score_scale() const { return kPairs ? p.scale : 1.0f; }

  void pack(long first, long count) const {
    const ViewOf<Element> key_view = {k + first * p.k.token, p.k.token, 1};
    const ViewOf<Element> value_view = {v + first * p.v.token, 1, p.v.token};
    if constexpr (kPairs) {
      pack_pair_columns(key_view, p.size, count, reinterpret_cast<Pair*>(keys));
      pack_pair_columns(value_view, count, p.size, reinterpret_cast<Pair*>(values));
    } else {
      pack_columns(key_view, p.size, count, keys);
      pack_columns(value_view, count, p.size, values);
    }
  }

  // The steps of a packed panel, as elements, for a product of `depth`.
  static long panel_depth(long depth) { return kPairs ? round_up(depth, 2) : depth; }

  TileResults<Element> results(long first) const {
    Element* to = out + first * p.out.token;
    if constexpr (sizeof(Element) == sizeof(float)) {
      return {to, p.out.token, to, p.out.token};
    } else {
      const long stride = round_up(p.size, 16);
      return {sums + (first - begin) * stride, stride, to, p.out.token};
    }
  }

  // Replaces the scores of a block of keys by weights, for the rows of a tile.
  void weigh(long first, long rows, long block, long stop, Factors& factors) const {
    const long padded = round_up(stop - block, kPanel);
    for (long i = 0; i < rows; ++i) {
      RowState& state = states[first - begin + i];
      if (factors.first) state = {-kInfinity, 0.0f};
      float* some = scores + i * kScoreStride;
      const long seen = larger(0, smaller(stop, seen_by(p, first + i)) - block);
      if (call.mask || seen < padded)
        mask_row(some, padded, seen, mask_at(p, call.mask, batch, head, first + i, block));
      factors.before[i] = weigh_row(some, reinterpret_cast<Factor*>(some), padded, state);
      if (!factors.last) continue;
      factors.after[i] = state.sum == 0.0f ? 1.0f : 1.0f / state.sum;
      if (call.logsumexp) {
        call.logsumexp[offset(p.logsumexp, batch, head) + (first + i) * p.logsumexp.token] =
            logsumexp_of(state);
      }
    }
  }

  // Rows of queries from `first` on, by the keys [block, block_end), which are packed.
  void attend_rows(long first, long rows, long block, long block_end) const {
    // Rows of a tile see different numbers of keys: all sums go as far as the last row sees.
    const long all = seen_by(p, first + rows - 1), stop = smaller(block_end, all);
    copy_tile(q + first * p.q.token, p.q.token, rows, p.size, p.scale, queries);
    for (long j = 0; j < stop - block; j += kPanel) {
      score_rows<kScoreStride>(rows, queries, keys + j * panel_depth(p.size), p.size, score_scale(),
                               scores + j);
    }
    TileResults<Element> to = results(first);
    Factors factors;
    factors.first = block == 0;
    factors.last = stop == all;
    if (factors.last) fetch_rows(to.out, to.stride, rows, p.size);
    if (!factors.first) fetch_rows(to.sums, to.sums_stride, rows, p.size);
    const long next = smaller(rows, end - first - rows);
    fetch_rows(q + (first + rows) * p.q.token, p.q.token, next, p.size);
    weigh(first, rows, block, stop, factors);
    for (long d = 0; d < p.size; d += kPanel, to.sums += kPanel, to.out += kPanel) {
      value_rows(rows, reinterpret_cast<const Factor*>(scores),
                 values + d * panel_depth(block_end - block), stop - block, factors, to,
                 smaller(kPanel, p.size - d));
    }
  }

  // Where block `at` of the keys begins. It depends on nothing that a part sees: the sums, and so
  // the bits, are the same for any number of threads.
  long block_begin(long at) const {
    return part_begin(divide_up(p.keys, kPanel), divide_up(p.keys, kKeyBlock), at) * kPanel;
  }

  void attend() const {
    const long seen = seen_by(p, end - 1);
    const TileCut tiles = cut_rows(end - begin);
    for (long at = 0; block_begin(at) < seen; ++at) {
      const long block = block_begin(at), block_end = smaller(seen, block_begin(at + 1));
      pack(block, block_end - block);
      for (long tile = 0; tile < tiles.tiles; ++tile) {
        const long first = begin + tiles.begin(tile);
        const long rows = begin + tiles.begin(tile + 1) - first;
        if (seen_by(p, first + rows - 1) > block) attend_rows(first, rows, block, block_end);
      }
    }
  }

  // Without keys every result is 0.
  void write_nothing() const {
    for (long i = begin; i < end; ++i) {
      for (long d = 0; d < p.size; ++d) put(out + i * p.out.token + d, 0.0f);
      if (call.logsumexp)
        call.logsumexp[offset(p.logsumexp, batch, head) + i * p.logsumexp.token] = 0.0f;
    }
  }
};

template <class Element, class Factor>
inline void attend_many(const Attention& p, const AttentionCall& call) {
  const long parts = parts_of(p, call.threads);
  const ManyLayout at = many_layout_of(p, call.threads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(call.threads)
  for (long item = 0; item < p.batch * p.heads * parts; ++item) {
    // Under a causal mask the last queries take longest: they begin.
    const long index = parts - 1 - item % parts, head = item / parts % p.heads;
    const long batch = item / parts / p.heads, shared = head / (p.heads / p.shared_heads);
    float* scratch = call.scratch + omp_get_thread_num() * at.end;
    const ManyQueries<Element, Factor> part = {
        p,
        call,
        batch,
        head,
        part_begin(p.queries, parts, index),
        part_begin(p.queries, parts, index + 1),
        static_cast<const Element*>(call.q) + offset(p.q, batch, head),
        static_cast<const Element*>(call.k) + offset(p.k, batch, shared),
        static_cast<const Element*>(call.v) + offset(p.v, batch, shared),
        static_cast<Element*>(call.out) + offset(p.out, batch, head),
        reinterpret_cast<Factor*>(scratch + at.keys),
        reinterpret_cast<Factor*>(scratch + at.values),
        reinterpret_cast<Factor*>(scratch + at.queries),
        scratch + at.scores,
        scratch + at.sums,
        reinterpret_cast<RowState*>(scratch + at.states)};
    if (p.keys == 0) {
      part.write_nothing();
    } else {
      part.attend();
    }
  }
}

inline long many_floats(const Attention& p, int threads) {
  return threads * many_layout_of(p, threads).end;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
