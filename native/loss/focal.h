// Focal loss: forward and backward of every element in one pass over logits and targets.
#pragma once
#include "simd/each_isa.h"

namespace bestof {

// alpha < 0: no weight of classes. Both the loss and the gradient are multiplied by `scale`.
struct FocalProblem {
  long count;
  float alpha, gamma, scale;
};

// Elements whose losses are summed on their own, so that the sum does not depend on the number of
// threads.
constexpr long kFocalPart = 16384;

inline long focal_parts(long count) {
  return (count + kFocalPart - 1) / kFocalPart;
}

// x: logits, y: targets in [0, 1]; loss (or null) and gradient: one an element; sums: one a part.
using FocalLoss = void(const FocalProblem& p, const float* x, const float* y, float* loss,
                       float* gradient, double* sums, int threads);

BESTOF_EACH_ISA(FocalLoss focal_loss;)

}  // namespace bestof
