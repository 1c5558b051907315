// How the queries of heads are cut into parts for threads, where tile registers multiply them.
#pragma once
#include "attention/forward.h"
#include "gemm/amx_block.h"

namespace bestof {
namespace BESTOF_TARGET {

// Parts that a thread gets at least, so that threads end at nearly the same time.
constexpr long kPartsOfThread = 4;

// Parts into which the queries of a head are cut. A part packs all keys, so few are best.
inline long query_parts(const Attention& p, int threads) {
  const long wanted = divide_up(kPartsOfThread * threads, larger(p.batch * p.heads, 1));
  return larger(1, threads == 1 ? 1 : smaller(wanted, divide_up(p.queries, 2 * kBlockHeight)));
}

// The most queries of a part, rounded up to whole tiles.
inline long most_queries(const Attention& p, int threads) {
  return divide_up(divide_up(p.queries, kBlockHeight), query_parts(p, threads)) * kBlockHeight;
}

// Queries [begin, end) of a head. shared: its head of keys and values.
struct QueryPart {
  long batch, head, shared, begin, end;
};

// Part `item` of all, `parts` of each head. Parts begin at whole tiles, so that the rows of a tile
// do not depend on the number of threads. Under a causal mask the last queries take longest: they
// come first.
inline QueryPart query_part(const Attention& p, long parts, long item) {
  const long index = parts - 1 - item % parts, head = item / parts % p.heads;
  const long tiles = divide_up(p.queries, kBlockHeight);
  return {item / parts / p.heads, head, head / (p.heads / p.shared_heads),
          smaller(p.queries, part_begin(tiles, parts, index) * kBlockHeight),
          smaller(p.queries, part_begin(tiles, parts, index + 1) * kBlockHeight)};
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
