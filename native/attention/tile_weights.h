// The softmax of rows of scores that tile registers left: 16 rows at once, in powers of two.
//
// One vector holds a number of each row. So the highest score and the sum of a row take three
// instructions, where a row by itself takes twenty that wait for each other.
#pragma once
#include "attention/softmax.h"
#include "simd/tiles.h"

namespace bestof {
namespace BESTOF_TARGET {

static_assert(kTileHeight == kLanes, "a vector holds a number of each row of a tile");

constexpr float kLog2OfE = 1.44269504088896341f, kLogOf2 = 0.693147180559945309f;

BESTOF_INLINE __m512 raw(Vec v) {
  return reinterpret_cast<__m512>(v);
}
BESTOF_INLINE Vec vec(__m512 v) {
  return reinterpret_cast<Vec>(v);
}

// Returns 2^(x + kRaised) in the wanted lanes, or 0 if 2^x is below the normal numbers, and 0 in
// the other lanes. The relative error is below 2e-7: a minimax polynomial within 9e-8 over [0, 1),
// whose value at 0 is 1. NaN stays NaN.
template <int kRaised = 0>
BESTOF_INLINE Vec power_of_two(Vec x, __mmask16 wanted = 0xFFFF) {
  constexpr int kDownwards = 1;
  constexpr float kOne = 1l << kRaised;
  const Vec r = vec(_mm512_reduce_ps(raw(x), kDownwards));
  Vec p = broadcast(0.001866952633f * kOne);
  p = p * r + 0.009017480537f * kOne;
  p = p * r + 0.05579951406f * kOne;
  p = p * r + 0.2401645929f * kOne;
  p = p * r + 0.6931512952f * kOne;
  p = p * r + kOne;
  const __mmask16 is_normal =
      _mm512_mask_cmp_ps_mask(wanted, raw(x), _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  return vec(_mm512_maskz_scalef_ps(is_normal, raw(p), raw(x)));
}

// Returns log x for normal numbers, within 1e-7 + 1e-7 |log x|; 0 for 0.
BESTOF_INLINE Vec logarithm(Vec x) {
  const Vec m = vec(_mm512_getmant_ps(raw(x), _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src));
  const Vec exponent = vec(_mm512_getexp_ps(raw(x / m)));
  const Vec s = (m - 1.0f) / (m + 1.0f), square = s * s;  // |s| <= 0.2
  Vec p = broadcast(2.0f / 9);
  p = p * square + 2.0f / 7;
  p = p * square + 2.0f / 5;
  p = p * square + 2.0f / 3;
  p = p * square + 2.0f;
  return x == Vec{} ? Vec{} : exponent * kLogOf2 + p * s;
}

// Returns the larger of two; ignores NaN in a.
BESTOF_INLINE Vec larger_of(Vec a, Vec b) {
  return vec(_mm512_max_ps(raw(a), raw(b)));
}

// Returns the rounded product. The compiler fuses a product and a sum, but not this one.
BESTOF_INLINE Vec rounded_product(Vec v, float factor) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return vec(_mm512_mul_round_ps(raw(v), _mm512_set1_ps(factor), kNearest));
}

// Returns a vector whose lane i folds the lanes of rows[i]: operation(a, b) for pairs of them.
template <class Operation>
BESTOF_INLINE Vec fold_rows(const float (&rows)[kLanes][kLanes], const Operation& operation) {
  // Each step folds two vectors into one, so rows arrive in the order of reversed bits.
  constexpr int kReversed[] = {0, 2, 1, 3};
  Vec v[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) v[i] = load(rows[4 * kReversed[i / 4] + kReversed[i % 4]]);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512 a = raw(v[i]), b = raw(v[i + 8]);
    v[i] = operation(vec(_mm512_shuffle_f32x4(a, b, 0x44)), vec(_mm512_shuffle_f32x4(a, b, 0xEE)));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 a = raw(v[i]), b = raw(v[i + 4]);
    v[i] = operation(vec(_mm512_shuffle_f32x4(a, b, 0x88)), vec(_mm512_shuffle_f32x4(a, b, 0xDD)));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512 a = raw(v[i]), b = raw(v[i + 2]);
    v[i] = operation(vec(_mm512_shuffle_ps(a, b, 0x44)), vec(_mm512_shuffle_ps(a, b, 0xEE)));
  }
  const __m512 a = raw(v[0]), b = raw(v[1]);
  return operation(vec(_mm512_shuffle_ps(a, b, 0x88)), vec(_mm512_shuffle_ps(a, b, 0xDD)));
}

// What 16 rows know of their scores so far. `highest` is scaled.
struct TileState {
  float highest[kLanes], sum[kLanes];
};

// Rows of scores, `stride` apart, become weights at their place.
struct TileScores {
  float* data;
  long stride, rows, count;  // count: of scores of a row, a multiple of 32
  float scale;               // of scores; not negative
};

// After so many weights, which take 0.2 us, a product keeps the tile unit awake.
constexpr long kAwakeWeights = 1500;

// Up to this distance from 0, scores in powers of two are rounded by at most 2^-8. All weights of a
// row err by the same factor then, which cancels.
constexpr float kNear = 65536.0f;

// Returns whether a scale is too large to be multiplied by log2(e). The product would be infinity,
// and infinity times a score of 0 is NaN.
BESTOF_INLINE bool is_far_scale(float scale) {
  return __builtin_fabsf(scale) > 2e38f;
}

// Writes the weights of the rows over their scores, and sums of them to `sums`, a vector a row.
// `base` is subtracted from the scores of a row. It is the highest score, in powers of two unless
// kFar. If a highest score or the scale is far from 0, scores are subtracted before they become
// powers of two. Else the highest one could get a weight of 0 or infinity, and -3e38 would become
// -infinity.
template <bool kFar>
BESTOF_INLINE void weigh_rows(const TileScores& scores, const float (&base)[kLanes],
                              float (&sums)[kLanes][kLanes]) {
  const auto power_of = [&](const float* score, Vec above) {
    if constexpr (kFar) {
      return power_of_two((rounded_product(load(score), scores.scale) - above) * kLog2OfE);
    } else {
      return power_of_two(load(score) * broadcast(scores.scale * kLog2OfE) - above);
    }
  };
  long since = 0;
  for (long i = 0; i < scores.rows; ++i) {
    const float* row = scores.data + i * scores.stride;
    Bfloat16* weights = reinterpret_cast<Bfloat16*>(scores.data + i * scores.stride);
    const Vec above = broadcast(base[i]);
    Vec sum[2] = {};
    for (long j = 0; j < scores.count; j += 2 * kLanes) {
      const Vec first = power_of(row + j, above), second = power_of(row + j + kLanes, above);
      store_two(weights + j, first, second);
      sum[0] += first;
      sum[1] += second;
    }
    store(sums[i], sum[0] + sum[1]);
    since += scores.count;
    if (since > kAwakeWeights) {
      keep_tiles_awake();
      since = 0;
    }
  }
}

// Writes the exponentials of the scaled scores over the highest of a row so far. These weights are
// rounded to bfloat16; sums are taken before. Returns the factors for what was summed before.
BESTOF_INLINE Vec weigh_tile(const TileScores& scores, TileState& state) {
  alignas(64) float folded[kLanes][kLanes];
  if (scores.rows < kLanes) __builtin_memset(folded, 0, sizeof folded);
  for (long i = 0; i < scores.rows; ++i) {
    const float* row = scores.data + i * scores.stride;
    Vec high[2] = {load(row), load(row + kLanes)};
    for (long j = 2 * kLanes; j < scores.count; j += 2 * kLanes) {
      high[0] = larger_of(load(row + j), high[0]);
      high[1] = larger_of(load(row + j + kLanes), high[1]);
    }
    store(folded[i], larger_of(high[0], high[1]));
  }
  const Vec old = load(state.highest);
  const Vec highest = larger_of(fold_rows(folded, larger_of) * scores.scale, old);
  // If all scores are -infinity, any finite number gives weights of 0.
  const Vec bases = highest == broadcast(-kInfinity) ? Vec{} : highest;
  const bool is_far =
      is_far_scale(scores.scale) ||
      _mm512_cmp_ps_mask(_mm512_abs_ps(raw(bases)), _mm512_set1_ps(kNear), _CMP_GT_OQ) != 0;
  alignas(64) float base[kLanes];
  Vec before;
  if (is_far) {
    store(base, bases);
    weigh_rows<true>(scores, base, folded);
    before = power_of_two((old - bases) * kLog2OfE);
  } else {
    const Vec powers = rounded_product(bases, kLog2OfE);
    store(base, powers);
    weigh_rows<false>(scores, base, folded);
    before = power_of_two(rounded_product(old, kLog2OfE) - powers);
  }
  const auto add = [](Vec a, Vec b) { return a + b; };
  store(state.highest, highest);
  store(state.sum, load(state.sum) * before + fold_rows(folded, add));
  return before;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
