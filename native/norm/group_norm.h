// The gradients of group norm of images in channels last.
#pragma once
#include "simd/each_isa.h"

namespace bestof {

// Arrays of [images, pixels, channels]. Each of `groups` groups has channels / groups channels.
struct GroupNormProblem {
  long images, pixels, channels, groups;
};

// The floats that GroupNormBackwardCall::scratch must have.
inline long group_norm_scratch(const GroupNormProblem& p) {
  const long parts = (p.pixels + 127) / 128;
  return p.images * p.channels * (2 * parts + 6);
}

// scale may be null, and so may be any result. Results must not overlap operands.
struct GroupNormBackwardCall {
  const float *gradient, *x, *mean, *rstd, *scale;  // mean, rstd: [images, groups]
  float *x_gradient, *scale_gradient, *shift_gradient;
  float* scratch;
  int threads;
};

using GroupNormBackward = void(const GroupNormProblem&, const GroupNormBackwardCall&);

BESTOF_EACH_ISA(GroupNormBackward group_norm_backward;)

}  // namespace bestof
