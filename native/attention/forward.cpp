#include "attention/forward.h"

#include <omp.h>

#include "attention/few_queries.h"
#include "attention/score_tile.h"
#include "attention/softmax.h"
#include "gemm/panels.h"
#include "simd/kernels.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// The most keys of a block. Their scores for one tile of rows take 14 KB of L1 (AVX-512), and their
// keys and values 128 KB of L2 where a head has 64 numbers.
constexpr long kKeyBlock = 256;
static_assert(kKeyBlock <= kChain && kKeyBlock % kPanel == 0);

// The distance of rows of scores: an odd number of cache lines, so that they fall into different
// sets.
constexpr long kScoreStride = kKeyBlock + 16;

// Parts that a thread gets at least, so that threads end at nearly the same time.
constexpr long kPartsPerThread = 4;

// Parts into which the queries of a head are cut. A part packs all keys, so few are best.
long parts_of(const Attention& p, int threads) {
  const long heads = larger(p.batch * p.heads, 1);
  const long wanted = divide_up(kPartsPerThread * threads, heads);
  return larger(1, threads == 1 ? 1 : smaller(wanted, divide_up(p.queries, 2 * kTileRows)));
}

// The scratch of a thread, in floats from its begin.
struct Layout {
  long keys, values, queries, scores, states, end;
};

Layout layout_of(const Attention& p, int threads) {
  Layout at;
  const long rows = divide_up(p.queries, parts_of(p, threads)) + 1;
  at.keys = 0;
  at.values = at.keys + kKeyBlock * round_up(p.size, 16);
  at.queries = at.values + kKeyBlock * round_up(p.size, kPanel);
  at.scores = at.queries + kTileRows * query_stride(p);
  at.states = at.scores + kTileRows * kScoreStride;
  at.end = round_up(at.states + 2 * rows, 32);
  return at;
}

// Queries [begin, end) of one head.
struct Part {
  const float *q, *k, *v;
  const float* mask;
  float *out, *logsumexp;
  long begin, end;
  float *keys, *values, *queries, *scores;
  RowState* states;
};

// Keys [begin, end), packed.
struct Block {
  long begin, end;
  long padded;  // keys and absent ones that fill up the last panel
};

// How results become those with one more block: (old * before + sums) * after. The compiler can
// fuse only one product and sum here. So the bits are the same wherever a compiler fuses, and
// whatever the number of threads.
struct Factors {
  float before[kTileRows], after[kTileRows];
  bool first;  // there are no old results
};

// Adds R rows of weights times values to `columns` <= kPanel columns of the results.
template <int R>
__attribute__((noinline)) inline void value_tile(const float* weights, const float* values,
                                                 long keys, const Factors& factors, float* out,
                                                 long stride, long columns) {
  Accumulator<R> acc;
  clear(acc);
  accumulate<0>(acc, weights, kScoreStride, keys, values, nullptr);
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j) {
      const long n = larger(0, smaller(columns - j * kLanes, kLanes));
      float* to = out + i * stride + j * kLanes;
      Vec v = acc.v[i][j];
      if (n == kLanes) {
        if (!factors.first) v += load(to) * factors.before[i];
        store(to, v * factors.after[i]);
      } else if (n > 0) {
        if (!factors.first) v += load_first(to, n) * factors.before[i];
        store_first(to, v * factors.after[i], n);
      }
    }
  }
}

template <int R>
BESTOF_INLINE void value_rows(long rows, const float* weights, const float* values, long keys,
                              const Factors& factors, float* out, long stride, long columns) {
  if constexpr (R > 0) {
    if (rows == R) return value_tile<R>(weights, values, keys, factors, out, stride, columns);
    value_rows<R - 1>(rows, weights, values, keys, factors, out, stride, columns);
  }
}

// Asks for rows that will be needed soon. Exponentials leave memory idle meanwhile: without this,
// copies of queries took a tenth of the time (1,024 tokens, Cascade Lake).
BESTOF_INLINE void fetch_rows(const float* from, long stride, long rows, long size) {
  for (long i = 0; i < rows; ++i) {
    for (long d = 0; d < size; d += 16) __builtin_prefetch(from + i * stride + d, 1, 3);
  }
}

// Rows of queries from `first` on, by the keys of one block.
void attend_rows(const Attention& p, const Part& part, const Block& block, long first, long rows) {
  // Rows of a tile see different numbers of keys: all sums go as far as the last row sees.
  const long end = smaller(block.end, seen_by(p, first + rows - 1));
  const long keys = end - block.begin, padded = round_up(keys, kPanel);
  const bool is_first = block.begin == 0;
  copy_queries(p, part.q + first * p.q.token, rows, part.queries);
  for (long j = 0; j < padded; j += kPanel) {
    score_rows<kScoreStride>(rows, part.queries, query_stride(p), part.keys + j * p.size, p.size,
                             part.scores + j);
  }
  fetch_rows(part.out + first * p.out.token, p.out.token, rows, p.size);
  const long next = smaller(rows, part.end - first - rows);
  fetch_rows(part.q + (first + rows) * p.q.token, p.q.token, next, p.size);
  Factors factors;
  factors.first = is_first;
  for (long i = 0; i < rows; ++i) {
    RowState& state = part.states[first - part.begin + i];
    if (is_first) state = {-kInfinity, 0.0f};
    float* scores = part.scores + i * kScoreStride;
    const long all = seen_by(p, first + i);
    const long seen = larger(0, smaller(end, all) - block.begin);
    if (part.mask || seen < padded) {
      MaskRow mask = {nullptr, p.mask.key};
      if (part.mask) mask.data = part.mask + (first + i) * p.mask.query + block.begin * p.mask.key;
      mask_row(scores, padded, seen, mask);
    }
    factors.before[i] = weigh_row(scores, padded, state);
    factors.after[i] = 1.0f;
    if (end == seen_by(p, first + rows - 1)) {  // the last block of this tile
      factors.after[i] = state.sum == 0.0f ? 1.0f : 1.0f / state.sum;
      if (part.logsumexp) {
        part.logsumexp[(first + i) * p.logsumexp.token] = logsumexp_of(state);
      }
    }
  }
  for (long d = 0; d < p.size; d += kPanel) {
    value_rows<kTileRows>(rows, part.scores, part.values + d * (block.end - block.begin), keys,
                          factors, part.out + first * p.out.token + d, p.out.token,
                          smaller(kPanel, p.size - d));
  }
}

void attend(const Attention& p, const Part& part) {
  const long seen = seen_by(p, part.end - 1), panels = divide_up(seen, kPanel);
  const long blocks = divide_up(seen, kKeyBlock);
  const TileCut tiles = cut_rows(part.end - part.begin);
  for (long at = 0; at < blocks; ++at) {
    Block block = {part_begin(panels, blocks, at) * kPanel, 0, 0};
    block.end = smaller(seen, part_begin(panels, blocks, at + 1) * kPanel);
    const long keys = block.end - block.begin;
    pack_columns({part.k + block.begin * p.k.token, p.k.token, 1}, p.size, keys, part.keys);
    pack_columns({part.v + block.begin * p.v.token, 1, p.v.token}, keys, p.size, part.values);
    for (long tile = 0; tile < tiles.tiles; ++tile) {
      const long first = part.begin + tiles.begin(tile);
      const long rows = part.begin + tiles.begin(tile + 1) - first;
      if (seen_by(p, first + rows - 1) > block.begin) attend_rows(p, part, block, first, rows);
    }
  }
}

// Without keys every result is 0.
void write_nothing(const Attention& p, const Part& part) {
  for (long i = part.begin; i < part.end; ++i) {
    for (long d = 0; d < p.size; ++d) part.out[i * p.out.token + d] = 0.0f;
    if (part.logsumexp) part.logsumexp[i * p.logsumexp.token] = 0.0f;
  }
}

void run(const Attention& p, const AttentionCall& call) {
  if (p.element == Element::kBfloat16) return attend_few<Bfloat16>(p, call);
  if (p.queries <= kFewQueries) return attend_few<float>(p, call);
  const long parts = parts_of(p, call.threads);
  const Layout at = layout_of(p, call.threads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(call.threads)
  for (long item = 0; item < p.batch * p.heads * parts; ++item) {
    // Under a causal mask the last queries take longest: they begin.
    const long index = parts - 1 - item % parts, head = item / parts % p.heads;
    const long batch = item / parts / p.heads, shared = head / (p.heads / p.shared_heads);
    float* scratch = call.scratch + omp_get_thread_num() * at.end;
    Part part = {};
    part.q = floats(call.q) + offset(p.q, batch, head);
    part.k = floats(call.k) + offset(p.k, batch, shared);
    part.v = floats(call.v) + offset(p.v, batch, shared);
    if (call.mask) part.mask = call.mask + batch * p.mask.batch + head * p.mask.head;
    part.out = floats(call.out) + offset(p.out, batch, head);
    if (call.logsumexp) part.logsumexp = call.logsumexp + offset(p.logsumexp, batch, head);
    part.begin = part_begin(p.queries, parts, index);
    part.end = part_begin(p.queries, parts, index + 1);
    part.keys = scratch + at.keys;
    part.values = scratch + at.values;
    part.queries = scratch + at.queries;
    part.scores = scratch + at.scores;
    part.states = reinterpret_cast<RowState*>(scratch + at.states);
    if (p.keys == 0) {
      write_nothing(p, part);
    } else {
      attend(p, part);
    }
  }
}

long scratch_floats(const Attention& p, int threads) {
  const bool few = p.queries <= kFewQueries;
  return threads * (few ? few_layout_of(p).end : layout_of(p, threads).end);
}

}  // namespace

const AttentionPass attention = {run, scratch_floats};

}  // namespace BESTOF_TARGET
}  // namespace bestof
