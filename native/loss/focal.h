// Focal loss: computes loss and gradient in one pass over logits and targets.
#pragma once
#include "simd/each_isa.h"

namespace bestof {

// If alpha < 0, classes have no weights. `scale` multiplies both the loss and the gradient.
struct FocalProblem {
  long count;
  float alpha, gamma, scale;
};

// The elements of a part. Each part is summed separately, so that the sum does not depend on the
// number of threads.
constexpr long kFocalPart = 16384;

inline long focal_parts(long count) {
  return (count + kFocalPart - 1) / kFocalPart;
}

// x: logits; y: targets in [0, 1]; loss (or null) and gradient: per element; sums: per part.
using FocalLoss = void(const FocalProblem& p, const float* x, const float* y, float* loss,
                       float* gradient, double* sums, int threads);

BESTOF_EACH_ISA(FocalLoss focal_loss;)

}  // namespace bestof
