// The softmax of rows of scores that arrive in blocks.
#pragma once
#include "conv/operands.h"
#include "simd/bfloat16.h"
#include "simd/decay.h"
#include "simd/lanes.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {

constexpr float kInfinity = __builtin_inff();

// The mask of one row of scores, float32 or bfloat16: element j lies j * stride elements behind the
// first.
struct MaskRow {
  const void* data;  // or null
  Element element;
  long stride;
};

template <class T>
BESTOF_INLINE void add_mask(float* scores, long count, const T* mask, long stride) {
  long j = 0;
  if (stride == 1) {
    for (; j + kLanes <= count; j += kLanes) store(scores + j, load(scores + j) + load(mask + j));
  } else if (stride == 0 && count > 0) {
    const Vec added = broadcast(value_of(mask[0]));
    for (; j + kLanes <= count; j += kLanes) store(scores + j, load(scores + j) + added);
  }
  for (; j < count; ++j) scores[j] += value_of(mask[j * stride]);
}

// Adds the mask to the first `seen` of `count` scores, and makes the others -infinity.
__attribute__((noinline)) inline void mask_row(float* scores, long count, long seen,
                                               const MaskRow& mask) {
  if (mask.data && mask.element == Element::kBfloat16) {
    add_mask(scores, seen, halves(mask.data), mask.stride);
  } else if (mask.data) {
    add_mask(scores, seen, floats(mask.data), mask.stride);
  }
  for (long j = seen; j < count; ++j) scores[j] = -kInfinity;
}

// What a row knows of its scores so far.
struct RowState {
  float highest, sum;
};

// Returns log of the sum of the exponentials of all scores; 0 if there were none but -infinity.
// Where a score is infinity the sum is NaN, but its logarithm is infinity: the backward pass then
// gives weights of 0 to the finite scores, in place of NaN.
BESTOF_INLINE float logsumexp_of(const RowState& state) {
  if (state.sum == 0.0f) return 0.0f;
  return state.highest == kInfinity ? kInfinity : state.highest + __builtin_logf(state.sum);
}

// Writes the exponentials of `count` scores, a multiple of 2 kLanes, over the highest score so far.
// `weights` are at the place of the scores, float32 or rounded to bfloat16; the sum is that of the
// exponentials before they are rounded. Returns the factor for what was summed before.
template <class Weight>
BESTOF_INLINE float weigh_row(const float* scores, Weight* weights, long count, RowState& state) {
  Vec high[2] = {broadcast(state.highest), broadcast(state.highest)};
  for (long j = 0; j < count; j += 2 * kLanes) {
    high[0] = maximum(load(scores + j), high[0]);
    high[1] = maximum(load(scores + j + kLanes), high[1]);
  }
  const float highest = highest_lane(maximum(high[0], high[1]));
  // If all scores are -infinity, any finite number gives weights of 0.
  const float base = highest == -kInfinity ? 0.0f : highest;
  Vec sum[2] = {};
  for (long j = 0; j < count; j += 2 * kLanes) {
    const Vec first = weight_of(load(scores + j) - base);
    const Vec second = weight_of(load(scores + j + kLanes) - base);
    store(weights + j, first);
    store(weights + j + kLanes, second);
    sum[0] += first;
    sum[1] += second;
  }
  const float factor = weight_of(broadcast(state.highest - base))[0];
  state.highest = highest;
  state.sum = state.sum * factor + sum_lanes(sum[0] + sum[1]);
  return factor;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
