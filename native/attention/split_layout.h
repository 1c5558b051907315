// How attention of float32 by tile registers is cut into parts and blocks, and the scratch of a
// thread.
#pragma once
#include "attention/query_parts.h"
#include "gemm/bfloat16_parts.h"

namespace bestof {
namespace BESTOF_TARGET {

// The most keys of a block. Blocks of 256 keys took 1.1 times as long, and blocks of 128 keys 1.3
// times (12 heads of 64 numbers, 512 to 2,048 tokens).
constexpr long kSplitKeys = 512;
static_assert(kSplitKeys % kTileDepth == 0 && kSplitKeys <= kDepthBlock);

// The same of these heads. Parts of keys and values, which take 12 bytes a number, stay in L2.
inline long most_keys(const Attention& p) {
  return p.size <= 128 ? kSplitKeys : kSplitKeys / 2;
}

// The distance of rows of scores: an odd number of cache lines.
constexpr long kSplitStride = kSplitKeys + 16;

// The scratch of a thread, in floats from its begin.
struct SplitLayout {
  long keys, values, queries, weights, scores, sums, states, sets, row, panel, stash, end;
};

inline SplitLayout split_layout_of(const Attention& p, int threads) {
  const long depth = round_up(p.size, kTileDepth), height = kBlockHeight;
  const long most = most_queries(p, threads);
  SplitLayout at;
  at.keys = 0;
  at.values = at.keys + most_keys(p) * depth * kParts / 2;
  at.queries = at.values + most_keys(p) * depth * kParts / 2;
  at.weights = at.queries + height * depth * kParts / 2;
  at.scores = at.weights + height * kSplitKeys * kParts;  // of two blocks of rows
  at.sums = at.scores + 2 * height * kSplitStride;
  at.states = at.sums + (p.keys > most_keys(p) ? most : height) * depth;
  at.sets = at.states + 2 * most;
  at.row = at.sets + round_up(kSplitKeys / kPanel + depth / kPanel, 16);
  at.panel = at.row + larger(depth, kSplitKeys);
  at.stash = at.panel + larger(depth, kSplitKeys) * kPanel;
  at.end = at.stash + height * kPanel;
  return at;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
