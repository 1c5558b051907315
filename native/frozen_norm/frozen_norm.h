// Batch norm with fixed statistics, optionally followed by a ReLU.
#pragma once
#include "conv/problem.h"
#include "simd/each_isa.h"

namespace bestof {

// The tensors are [outer, channels, inner]. Images in channels last have inner = 1, and rows of
// pixels as the outer axis.
struct FrozenNormProblem {
  long outer, channels, inner;
  bool relu;
  Element element = Element::kFloat32;  // of all but scale and shift
};

// y = x scale + shift, or its positive part. y may be x.
using FrozenNormForward = void(const FrozenNormProblem& p, const void* x, const float* scale,
                               const float* shift, void* y, int threads);
// slope = gradient scale; 0 where a ReLU returned y <= 0. y is not read without a ReLU. slope may
// be gradient.
using FrozenNormBackward = void(const FrozenNormProblem& p, const void* gradient, const void* y,
                                const float* scale, void* slope, int threads);

BESTOF_EACH_ISA(FrozenNormForward frozen_norm_forward; FrozenNormBackward frozen_norm_backward;)

}  // namespace bestof
