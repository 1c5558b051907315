// How the gradients of attention by tile registers are cut into blocks, and the scratch of a
// thread.
#pragma once
#include "attention/forward.h"
#include "attention/tile_slopes.h"
#include "gemm/tile.h"

namespace bestof {
namespace BESTOF_TARGET {

// The most keys of a block.
constexpr long kGradientKeys = 256;
static_assert(kGradientKeys % kSlopeKeys == 0);

// The distance of transposed sums, and of rows of slopes: odd numbers of cache lines.
constexpr long kTurnedStride = kGradientKeys + 16, kSlopeRow = kGradientKeys + kTileDepth;

// The distance of panels of pairs, in elements of one part. The queries of a group are those that
// add to dK and dV together.
template <class Numbers>
constexpr long kPairPanel = Numbers::kGroupQueries * kPanel + 2 * kTileDepth;

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

template <class Numbers>
inline GradientLayout gradient_layout_of(const Attention& p) {
  constexpr long parts = Numbers::kPartCount;
  static_assert(Numbers::kGroupQueries % kBlockHeight == 0);
  const long depth = round_up(p.size, kTileDepth), queries = round_up(p.queries, kBlockHeight);
  const long blocks = p.heads > p.shared_heads ? divide_up(p.keys, kGradientKeys) : 1;
  const long block = kGradientKeys * depth * parts / 2, head = queries * depth * parts / 2;
  const long turned = row_stride(queries) * depth * parts / 2;
  const long pairs = kGradientKeys / kPanel * kPairPanel<Numbers> * parts / 2;
  GradientLayout at;
  at.keys = 0;
  at.values = at.keys + block;
  at.key_rows = at.values + block;
  at.scores = at.key_rows + block;
  at.products = at.scores + kBlockHeight * kSlopeStride;
  at.slopes = at.products + kBlockHeight * kSlopeStride;
  at.weight_pairs = at.slopes + kBlockHeight * kSlopeRow * parts / 2;
  at.slope_pairs = at.weight_pairs + pairs;
  at.q = at.slope_pairs + pairs;
  at.gradient = at.q + head;
  at.turned_q = at.gradient + head;
  at.turned_gradient = at.turned_q + turned;
  at.dq = at.turned_gradient + turned;
  at.logsumexp = at.dq + queries * depth;
  at.sums = at.logsumexp + queries;
  at.dk = at.sums + queries;
  at.dv = at.dk + blocks * turned_floats(p);
  at.end = at.dv + blocks * turned_floats(p);
  return at;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
