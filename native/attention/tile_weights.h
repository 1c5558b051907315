// The softmax of rows of sums that tile registers left, with powers of two.
#pragma once
#include "attention/softmax.h"

namespace bestof {
namespace BESTOF_TARGET {

constexpr float kLog2OfE = 1.44269504088896341f, kLogOf2 = 0.693147180559945309f;

// Returns 2^x for x <= 0, or 0 if the result is not a normal number. The relative error is below
// 2e-7: a minimax polynomial within 9e-8 over [0, 1), whose value at 0 is 1. NaN stays NaN.
BESTOF_INLINE Vec power_of_two(Vec x) {
  constexpr int kDownwards = 1;
  const __m512 exponent = reinterpret_cast<__m512>(x);
  const Vec r = reinterpret_cast<Vec>(_mm512_reduce_ps(exponent, kDownwards));
  Vec p = broadcast(0.001866952633f);
  p = p * r + 0.009017480537f;
  p = p * r + 0.05579951406f;
  p = p * r + 0.2401645929f;
  p = p * r + 0.6931512952f;
  p = p * r + 1.0f;
  const __mmask16 is_normal = _mm512_cmp_ps_mask(exponent, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  return reinterpret_cast<Vec>(
      _mm512_maskz_scalef_ps(is_normal, reinterpret_cast<__m512>(p), exponent));
}

// Returns the larger of two; ignores NaN in a.
BESTOF_INLINE Vec larger_of(Vec a, Vec b) {
  return reinterpret_cast<Vec>(
      _mm512_max_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
}

BESTOF_INLINE void store_two(Bfloat16* to, Vec first, Vec second) {
  const __m512bh both =
      _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(second), reinterpret_cast<__m512>(first));
  _mm512_storeu_si512(to, reinterpret_cast<__m512i>(both));
}

// Writes 2^(factor * score) over the highest of a row so far, for `count` scores, a multiple of 32,
// and 0 <= factor. The weights are rounded to bfloat16 at the place of the scores; the sum is taken
// before. Returns the factor for what was summed before. state.highest is in powers of two.
BESTOF_INLINE float weigh_tile_row(float* scores, long count, float factor, RowState& state) {
  const Vec nothing = broadcast(-kInfinity);
  Vec high[2] = {nothing, nothing};
  for (long j = 0; j < count; j += 2 * kLanes) {
    high[0] = larger_of(load(scores + j), high[0]);
    high[1] = larger_of(load(scores + j + kLanes), high[1]);
  }
  const float found = highest_lane(larger_of(high[0], high[1])) * factor;
  const float highest = found > state.highest ? found : state.highest;
  // If all scores are -infinity, any finite number gives weights of 0.
  const float base = highest == -kInfinity ? 0.0f : highest;
  Bfloat16* weights = reinterpret_cast<Bfloat16*>(scores);
  Vec sum[2] = {};
  for (long j = 0; j < count; j += 2 * kLanes) {
    const Vec first = power_of_two(load(scores + j) * factor - base);
    const Vec second = power_of_two(load(scores + j + kLanes) * factor - base);
    store_two(weights + j, first, second);
    sum[0] += first;
    sum[1] += second;
  }
  const float before = power_of_two(broadcast(state.highest - base))[0];
  state.highest = highest;
  state.sum = state.sum * before + sum_lanes(sum[0] + sum[1]);
  return before;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
