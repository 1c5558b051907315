// Layer norm of rows in training: with its statistics, and its gradients.
#pragma once
#include "simd/each_isa.h"

namespace bestof {

struct LayerNormProblem {
  long rows, size;
  double epsilon;  // of the forward pass
};

// scale and shift may be null. y must not overlap the others.
struct LayerNormCall {
  const float *x, *scale, *shift;  // [rows, size], [size], [size]
  float *y, *mean, *rstd;          // [rows, size], [rows], [rows]; rstd: 1 / deviation
  int threads;
};

// scale may be null, and so may be any result. Results must not overlap operands.
struct LayerNormBackwardCall {
  const float *gradient, *x, *mean, *rstd, *scale;
  float *x_gradient, *scale_gradient, *shift_gradient;
  float* scratch;  // [threads, 2, size]
  int threads;
};

using LayerNorm = void(const LayerNormProblem&, const LayerNormCall&);
using LayerNormBackward = void(const LayerNormProblem&, const LayerNormBackwardCall&);

BESTOF_EACH_ISA(LayerNorm layer_norm; LayerNormBackward layer_norm_backward;)

}  // namespace bestof
