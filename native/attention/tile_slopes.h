// The backward counterpart of tile_weights.h: weights and slopes of a strip of queries, from the
// logsumexp of each query.
//
// A slope is the gradient of a score, without the scale. Both are rounded to bfloat16. Products
// that sum over keys read slopes row by row. Products that sum over queries read weights and slopes
// as panels, whose steps hold pairs of neighbouring queries: one more instruction for 32 elements.
#pragma once
#include "attention/tile_weights.h"
#include "gemm/micro_kernel.h"

namespace bestof {
namespace BESTOF_TARGET {

// The most keys of a strip at once. Scores and products, 16 KB each, stay in L1.
constexpr long kSlopeKeys = 128;

// The distance of rows of scores and products: an odd number of cache lines.
constexpr long kSlopeStride = kSlopeKeys + 16;

// The queries of a strip: of each, the logsumexp, the sum of gradient * result, and how many of the
// keys at hand it sees, which may be negative.
struct StripQueries {
  const float *logsumexp, *sums;
  long seen[kBlockHeight];
};

// Scores and products of gradients and values, kSlopeStride apart. Absent rows hold anything.
struct StripScores {
  const float *scores, *products;
  long count;         // of keys, a multiple of kPanel
  float scale;        // of scores
  float slope_power;  // that slopes are multiplied by before they are rounded
};

// Where the results of a strip go. Panel j of pairs begins at j * panel.
struct StripSlopes {
  Bfloat16* rows;
  long stride;
  Bfloat16 *weight_pairs, *slope_pairs;
  long panel;
};

// Returns which key of a panel lies in column `column` of half `half` of pairs of queries.
BESTOF_INLINE long paired_key(long half, long column) {
  return column / 4 * 8 + half * 4 + column % 4;
}

// Pairs two rows of 32 elements. The order of columns is that of `paired_key`: the interleaving
// instructions work in quarters of a vector.
BESTOF_INLINE void store_paired(Bfloat16* to, __m512i first, __m512i second) {
  _mm512_store_si512(to, _mm512_unpacklo_epi16(first, second));
  _mm512_store_si512(to + kTileDepth, _mm512_unpackhi_epi16(first, second));
}

// Returns the lanes below n, for any n.
BESTOF_INLINE __mmask16 lanes_below(long n) {
  return static_cast<__mmask16>((1u << larger(0, smaller(n, kLanes))) - 1);
}

// Up to this logsumexp, scores become powers of two before it is subtracted. That rounds it once
// more, and a weight errs by up to 2^-14, a sixty-fourth of what rounding to bfloat16 costs.
constexpr float kNearSum = 1024.0f;

// Writes the weights and slopes of the keys [0, count) for all 32 rows. Hidden keys get zeros,
// whatever their scores and products are.
// kFar: the logsumexp is subtracted first, from scores that are rounded as the forward pass rounds
// the highest one. kEdge: some rows do not see all keys.
template <bool kFar, bool kEdge>
__attribute__((noinline)) inline void slope_rows(const StripQueries& queries, const StripScores& in,
                                                 const StripSlopes& out) {
  const Vec power_scale = broadcast(in.scale * kLog2OfE);
  const auto compute = [&](long i, long j, __m512i& weight_bits, __m512i& slope_bits) {
    const Vec base = broadcast(kFar ? queries.logsumexp[i] : queries.logsumexp[i] * kLog2OfE);
    const Vec sum = broadcast(queries.sums[i]);
    Vec weights[2], slopes[2];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const long at = i * kSlopeStride + j + half * kLanes;
      const __mmask16 seen =
          kEdge ? lanes_below(queries.seen[i] - j - half * kLanes) : __mmask16(0xFFFF);
      const Vec score = load(in.scores + at);
      const Vec x =
          kFar ? (rounded_product(score, in.scale) - base) * kLog2OfE : score * power_scale - base;
      weights[half] = power_of_two(x, seen);
      const Vec slope = weights[half] * in.slope_power * (load(in.products + at) - sum);
      slopes[half] = kEdge ? vec(_mm512_maskz_mov_ps(seen, raw(slope))) : slope;
    }
    weight_bits = round_two(weights[0], weights[1]);
    slope_bits = round_two(slopes[0], slopes[1]);
  };
  long since = 0;
  for (long i = 0; i < kBlockHeight; i += 2) {
    Bfloat16* weight_pairs = out.weight_pairs + i * kPanel;
    Bfloat16* slope_pairs = out.slope_pairs + i * kPanel;
    Bfloat16* rows = out.rows + i * out.stride;
    for (long j = 0; j < in.count; j += kPanel) {
      __m512i weights[2], slopes[2];
      compute(i, j, weights[0], slopes[0]);
      compute(i + 1, j, weights[1], slopes[1]);
      store_paired(weight_pairs, weights[0], weights[1]);
      store_paired(slope_pairs, slopes[0], slopes[1]);
      _mm512_store_si512(rows + j, slopes[0]);
      _mm512_store_si512(rows + out.stride + j, slopes[1]);
      weight_pairs += out.panel;
      slope_pairs += out.panel;
    }
    since += 2 * in.count;
    if (since > kAwakeWeights) {
      keep_tiles_awake();
      since = 0;
    }
  }
}

// Calls the slope_rows that fits a strip.
inline void slope_strip(const StripQueries& queries, const StripScores& in,
                        const StripSlopes& out) {
  bool is_edge = false;
  for (const long seen : queries.seen) is_edge |= seen < in.count;
  const Vec first = load(queries.logsumexp), second = load(queries.logsumexp + kLanes);
  const Vec largest_sum =
      larger_of(vec(_mm512_abs_ps(raw(first))), vec(_mm512_abs_ps(raw(second))));
  const bool is_far = is_far_scale(in.scale) ||
                      _mm512_cmp_ps_mask(raw(largest_sum), _mm512_set1_ps(kNearSum), _CMP_NLE_UQ);
  if (is_far) {
    is_edge ? slope_rows<true, true>(queries, in, out) : slope_rows<true, false>(queries, in, out);
  } else {
    is_edge ? slope_rows<false, true>(queries, in, out)
            : slope_rows<false, false>(queries, in, out);
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
