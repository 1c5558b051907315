// The counterpart of tile_slopes.h for float32: weights and slopes of a strip of queries as parts
// of bfloat16.
//
// Parts are cut off, not rounded (see cut_row). Two rows of queries give pairs of neighbours by
// cutting both at once, so panels cost no shuffles.
#pragma once
#include "attention/split_weights.h"
#include "attention/tile_slopes.h"
#include "gemm/bfloat16_parts.h"

namespace bestof {
namespace BESTOF_TARGET {

// The largest weight, times 2^kRaised. Errors of a score raise a weight beyond 1. If they raise it
// beyond 16, the sums of slopes might become infinite.
constexpr unsigned kMostWeight = kExponentOfOne + kRaised + 4;

BESTOF_INLINE void store_parts(Bfloat16* to, const Parts& parts) {
#pragma GCC unroll 3
  for (int i = 0; i < kParts; ++i) store_line(to + i * kPairElements, parts.part[i]);
}

// Writes the parts of the weights, times 2^kRaised, and of the slopes for all 32 rows. `out.rows`
// is [step][part][32 rows][32 keys], whose lower and upper half are pairs; panels of pairs begin at
// a step of 32 queries. Hidden keys get zeros. Returns the bits of the largest weight, with NaN
// behind infinity. kEdge: some rows do not see all keys.
template <bool kEdge>
__attribute__((noinline)) inline unsigned split_slope_rows(const StripQueries& queries,
                                                           const StripScores& in,
                                                           const StripSlopes& out) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  const Vec scale = broadcast(in.scale);
  __m512i most = _mm512_setzero_si512();
  const auto compute = [&](long i, long j, Vec(&weights)[2], Vec(&slopes)[2]) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const long at = i * kSlopeStride + j + half * kLanes;
      const __mmask16 seen =
          kEdge ? lanes_below(queries.seen[i] - j - half * kLanes) : __mmask16(0xFFFF);
      const Vec x = (load(in.scores + at) * scale - queries.logsumexp[i]) * kLog2OfE;
      weights[half] = power_of_two<kRaised>(x, seen);
      most = _mm512_max_epu32(most, reinterpret_cast<__m512i>(weights[half]));
      // Rounded: a fused remainder would be that of another number.
      const Vec product = load(in.products + at) - queries.sums[i];
      slopes[half] = vec(_mm512_mul_round_ps(raw(weights[half]), raw(product), kNearest));
      if (kEdge) slopes[half] = vec(_mm512_maskz_mov_ps(seen, raw(slopes[half])));
    }
  };
  long since = 0;
  for (long i = 0; i < kBlockHeight; i += 2) {
    Bfloat16 *rows = out.rows + i * kTileDepth, *weight_pairs = out.weight_pairs + i * kLanes,
             *slope_pairs = out.slope_pairs + i * kLanes;
    for (long j = 0; j < in.count; j += kPanel, rows += kStepElements) {
      Vec weights[2][2], slopes[2][2];
      compute(i, j, weights[0], slopes[0]);
      compute(i + 1, j, weights[1], slopes[1]);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        store_parts(weight_pairs + half * kTileElements,
                    cut_row(weights[0][half], weights[1][half]));
        store_parts(slope_pairs + half * kTileElements, cut_row(slopes[0][half], slopes[1][half]));
        store_parts(rows + half * kTileDepth, cut_row(slopes[half][0], slopes[half][1]));
      }
      weight_pairs += out.panel;
      slope_pairs += out.panel;
    }
    since += 2 * in.count;
    if (since > kAwakeWeights) {
      keep_tiles_awake();
      since = 0;
    }
  }
  return _mm512_reduce_max_epu32(most);
}

// Calls the split_slope_rows that fits a strip. Returns whether all weights are within the bound.
inline bool split_slope_strip(const StripQueries& queries, const StripScores& in,
                              const StripSlopes& out) {
  bool is_edge = false;
  for (const long seen : queries.seen) is_edge |= seen < in.count;
  const unsigned most = is_edge ? split_slope_rows<true>(queries, in, out)
                                : split_slope_rows<false>(queries, in, out);
  return most >> 23 <= kMostWeight;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
