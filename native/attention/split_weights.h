// Weights of attention of float32 as parts of bfloat16.
#pragma once
#include "attention/forward.h"
#include "attention/softmax.h"
#include "gemm/bfloat16_parts.h"

namespace bestof {
namespace BESTOF_TARGET {

// Weights are multiplied by 2^60, so that parts of the smallest one are normal numbers. If a value
// is above 2^40, sums could become infinite, and weights are taken as they are.
constexpr int kRaised = 60;
constexpr float kRaisedOne = 1l << 60;
constexpr float kMostRaised = 1l << 40;

// Returns by which power of two the weights of a head are multiplied: 0 or kRaised. Infinity and
// NaN do not matter.
inline int raised_by(const Attention& p, const float* v) {
  Vec most = Vec{};
  for (long j = 0; j < p.keys; ++j, v += p.v.token) {
    for (long d = 0; d < p.size; d += kLanes) {
      const Vec value = load_first(v + d, smaller(p.size - d, kLanes));
      const Vec magnitude = reinterpret_cast<Vec>(reinterpret_cast<VecInt>(value) & 0x7FFFFFFF);
      most = maximum(magnitude < broadcast(kInfinity) ? magnitude : Vec{}, most);
    }
  }
  return highest_lane(most) > kMostRaised ? 0 : kRaised;
}

// Splits 32 elements into parts by cutting bits off. Parts are pairs of an element of `first` and
// one of `second`. This takes 14 instructions, where rounding takes 22, and those that wait for
// each other are shorter. A second part is up to twice as large as by rounding, and so is what a
// product of parts leaves out. Hence only one operand of a product is cut.
BESTOF_INLINE Parts cut_row(Vec first, Vec second) {
  Parts parts;
#pragma GCC unroll 3
  for (int i = 0; i < kParts; ++i) {
    const VecInt low = reinterpret_cast<VecInt>(first), high = reinterpret_cast<VecInt>(second);
    const auto shifted = _mm512_srli_epi32(reinterpret_cast<__m512i>(low), 16);
    const VecInt upper = high & ~0xFFFF;
    parts.part[i] = reinterpret_cast<VecInt>(shifted) | upper;
    if (i + 1 == kParts) break;
    first -= reinterpret_cast<Vec>(low & ~0xFFFF);
    second -= reinterpret_cast<Vec>(upper);
  }
  return parts;
}

// Returns the highest of `count` scores, a multiple of 32, and of what was highest before.
BESTOF_INLINE float highest_of(const float* scores, long count, float before) {
  Vec high[2] = {broadcast(before), broadcast(before)};
  for (long j = 0; j < count; j += 2 * kLanes) {
    high[0] = maximum(load(scores + j), high[0]);
    high[1] = maximum(load(scores + j + kLanes), high[1]);
  }
  return highest_lane(maximum(high[0], high[1]));
}

// As weight_of, times 2^raised.
BESTOF_INLINE Vec raised_weight_of(Vec x, int raised) {
  const Decay e = decay_parts(x);
  const VecInt exponent = e.exponent + ((static_cast<int>(kExponentOfOne) + raised) << 23);
  return x < broadcast(-87.0f) ? Vec{} : e.fraction * reinterpret_cast<Vec>(exponent);
}

// A row of parts as float32: sums of parts are exact.
inline void join_row(const Bfloat16* parts, long count, float* to) {
  for (long k = 0; k < count; k += kTileDepth, parts += kStepElements) {
    Vec first = Vec{}, second = Vec{};
#pragma GCC unroll 3
    for (int i = kParts - 1; i >= 0; --i) {
      const VecInt part = load_pairs(parts + i * kPairElements);
      first += lower_halves(part);
      second += upper_halves(part);
    }
    store(to + k, first);
    store(to + k + kLanes, second);
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
