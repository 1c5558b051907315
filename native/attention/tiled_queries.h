// Attention of many queries of bfloat16 by tile registers. Keys and values are packed block by
// block; rows of queries, two tiles high, pass over them.
//
// Depth is padded with zeros to a multiple of 32, so a row of a tile is never partial. Rows of
// queries and weights that do not exist are multiplied too, and ignored.
#pragma once
#include <omp.h>

#include "attention/query_parts.h"
#include "attention/score_tile.h"
#include "attention/tile_products.h"
#include "attention/tile_weights.h"
#include "conv/operands.h"

namespace bestof {
namespace BESTOF_TARGET {

// The most keys of a block.
constexpr long kTiledKeys = 256;
static_assert(kTiledKeys % kTileDepth == 0);

// The distance of rows of scores: an odd number of cache lines.
constexpr long kTiledStride = kTiledKeys + 16;

// The scratch of a thread, in floats from its begin.
struct TiledLayout {
  long keys, values, queries, scores, sums, states, end;
};

inline TiledLayout tiled_layout_of(const Attention& p, int threads) {
  const long depth = round_up(p.size, kTileDepth);
  const long most = most_queries(p, threads);
  const long rows = p.keys > kTiledKeys ? most : kBlockHeight;
  TiledLayout at;
  at.keys = 0;
  at.values = at.keys + kTiledKeys * depth / 2;
  at.queries = at.values + kTiledKeys * depth / 2;
  at.scores = at.queries + kBlockHeight * row_stride(p.size) / 2;
  at.sums = at.scores + kBlockHeight * kTiledStride;
  at.states = at.sums + rows * depth;
  at.end = round_up(at.states + 2 * rows, 32);
  return at;
}

// Queries [begin, end) of one head.
struct TiledQueries {
  const Attention& p;
  const AttentionCall& call;
  long batch, head, begin, end;
  const Bfloat16 *q, *k, *v;
  Bfloat16* out;
  Bfloat16 *keys, *values, *queries;
  float *scores, *sums;
  TileState* states;

  long depth() const { return round_up(p.size, kTileDepth); }

  void pack(long first, long count) const {
    pack_tile_columns({k + first * p.k.token, p.k.token, 1}, p.size, count, keys);
    pack_tile_columns({v + first * p.v.token, 1, p.v.token}, count, p.size, values);
  }

  // Blocks do not depend on the part, so neither do results.
  long block_begin(long at) const {
    return part_begin(divide_up(p.keys, kPanel), divide_up(p.keys, kTiledKeys), at) * kPanel;
  }

  // Copies queries, padded with zeros. A negative scale changes their signs.
  void copy(long first, long rows) const {
    const long stride = row_stride(p.size), padding = depth() - p.size;
    for (long i = 0; i < rows; ++i) {
      Bfloat16* to = queries + i * stride;
      const Bfloat16* from = q + (first + i) * p.q.token;
      long whole = 0;
      for (; whole + kTileDepth <= p.size; whole += kTileDepth)
        __builtin_memcpy(to + whole, from + whole, kTileDepth * sizeof(Bfloat16));
      if (whole < p.size)
        __builtin_memcpy(to + whole, from + whole, (p.size - whole) * sizeof(Bfloat16));
      if (padding) __builtin_memset(to + p.size, 0, padding * sizeof(Bfloat16));
      if (p.scale < 0.0f) {
        for (long d = 0; d < p.size; ++d) to[d].bits ^= 0x8000;
      }
    }
  }

  // Makes the scores of rows [first, first + rows) complete: scaled, masked, hidden keys -infinity.
  void mask(float* some, long first, long rows, long block, long stop, float scale) const {
    const long padded = round_up(stop - block, kTileDepth);
    for (long i = 0; i < rows; ++i, some += kTiledStride) {
      const long seen = larger(0, smaller(stop, seen_by(p, first + i)) - block);
      for (long j = 0; j < padded; j += kLanes) store(some + j, load(some + j) * scale);
      mask_row(some, padded, seen, mask_at(p, call.mask, batch, head, first + i, block));
    }
  }

  // Replaces scores of up to 16 rows by weights, and multiplies the sums so far.
  void weigh(float* some, float* so_far, TileState& state, long first, long rows, long block,
             long stop) const {
    const long padded = round_up(stop - block, kTileDepth);
    const float scale = p.scale < 0.0f ? -p.scale : p.scale;
    const bool is_masked = call.mask || smaller(stop, seen_by(p, first)) - block < padded;
    if (is_masked) mask(some, first, rows, block, stop, scale);
    if (block == 0) {
      store(state.highest, broadcast(-kInfinity));
      store(state.sum, Vec{});
    }
    const Vec before =
        weigh_tile({some, kTiledStride, rows, padded, is_masked ? 1.0f : scale}, state);
    if (block == 0) return;
    for (long i = 0; i < rows; ++i, so_far += depth()) {
      if (before[i] == 1.0f) continue;
      for (long d = 0; d < depth(); d += kLanes) store(so_far + d, load(so_far + d) * before[i]);
    }
  }

  void finish(const float* from, const TileState& state, long first, long rows) const {
    const Vec sum = load(state.sum), factors = sum == Vec{} ? broadcast(1.0f) : 1.0f / sum;
    for (long i = 0; i < rows; ++i, from += depth()) {
      const Vec factor = broadcast(factors[i]);
      Bfloat16* to = out + (first + i) * p.out.token;
      long d = 0;
      for (; d + 2 * kLanes <= p.size; d += 2 * kLanes)
        store_two(to + d, load(from + d) * factor, load(from + d + kLanes) * factor);
      for (; d < p.size; d += kLanes)
        store_first(to + d, load(from + d) * factor, smaller(p.size - d, kLanes));
    }
    if (!call.logsumexp) return;
    const Vec highest = load(state.highest), infinity = broadcast(kInfinity);
    const Vec all = highest + logarithm(sum);
    const Vec found = highest == infinity ? infinity : all;
    const Vec wanted = sum == Vec{} ? Vec{} : found;
    float* to = call.logsumexp + offset(p.logsumexp, batch, head) + first * p.logsumexp.token;
    for (long i = 0; i < rows; ++i) to[i * p.logsumexp.token] = wanted[i];
  }

  // Rows of queries from `first` on, by the keys [block, block_end), which are packed.
  template <int kRowTiles>
  __attribute__((noinline)) void attend_rows(long first, long rows, long block,
                                             long block_end) const {
    // Rows of a tile see different numbers of keys: all sums go as far as the last row sees.
    const long all = seen_by(p, first + rows - 1), stop = smaller(block_end, all);
    const long row = p.keys > kTiledKeys ? first - begin : 0;
    copy(first, rows);
    for (long j = 0; j < stop - block; j += kPanel) {
      multiply_rows<false, kRowTiles>(queries, row_stride(p.size), keys + j * depth(), depth(),
                                      scores + j, kTiledStride);
    }
    float* to = sums + row * depth();
    TileState* state = states + row / kTileHeight;
    for (long i = 0; i < rows; i += kTileHeight) {
      weigh(scores + i * kTiledStride, to + i * depth(), state[i / kTileHeight], first + i,
            smaller(rows - i, kTileHeight), block, stop);
    }
    const long padded = round_up(block_end - block, kTileDepth);
    const long used = round_up(stop - block, kTileDepth);
    for (long d = 0; d < depth(); d += kPanel) {
      if (block == 0) {
        multiply_rows<false, kRowTiles>(halves(scores), 2 * kTiledStride, values + d * padded, used,
                                        to + d, depth());
      } else {
        multiply_rows<true, kRowTiles>(halves(scores), 2 * kTiledStride, values + d * padded, used,
                                       to + d, depth());
      }
    }
    if (stop < all) return;
    for (long i = 0; i < rows; i += kTileHeight) {
      finish(to + i * depth(), state[i / kTileHeight], first + i, smaller(rows - i, kTileHeight));
    }
  }

  void attend() const {
    const long seen = seen_by(p, end - 1);
    for (long at = 0, block = 0; block < seen; block = block_begin(++at)) {
      const long stop = smaller(seen, block_begin(at + 1));
      pack(block, stop - block);
      for (long first = begin; first < end; first += kBlockHeight) {
        const long rows = smaller(end - first, kBlockHeight);
        if (seen_by(p, first + rows - 1) <= block) continue;
        if (rows > kTileHeight) {
          attend_rows<2>(first, rows, block, stop);
        } else {
          attend_rows<1>(first, rows, block, stop);
        }
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

inline void attend_tiled(const Attention& p, const AttentionCall& call) {
  const long parts = query_parts(p, call.threads);
  const TiledLayout at = tiled_layout_of(p, call.threads);
#pragma omp parallel num_threads(call.threads)
  {
    const TileRegisters registers;
    float* scratch = call.scratch + omp_get_thread_num() * at.end;
#pragma omp for schedule(dynamic, 1)
    for (long item = 0; item < p.batch * p.heads * parts; ++item) {
      const auto [batch, head, shared, begin, end] = query_part(p, parts, item);
      const TiledQueries part = {p,
                                 call,
                                 batch,
                                 head,
                                 begin,
                                 end,
                                 halves(call.q) + offset(p.q, batch, head),
                                 halves(call.k) + offset(p.k, batch, shared),
                                 halves(call.v) + offset(p.v, batch, shared),
                                 halves(call.out) + offset(p.out, batch, head),
                                 halves(scratch + at.keys),
                                 halves(scratch + at.values),
                                 halves(scratch + at.queries),
                                 scratch + at.scores,
                                 scratch + at.sums,
                                 reinterpret_cast<TileState*>(scratch + at.states)};
      if (p.keys == 0) {
        part.write_nothing();
      } else {
        part.attend();
      }
    }
  }
}

inline long tiled_floats(const Attention& p, int threads) {
  return threads * tiled_layout_of(p, threads).end;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
