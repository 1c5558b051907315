// GELU and SiLU of whole arrays, and their gradients.
#pragma once
#include "conv/problem.h"
#include "simd/each_isa.h"

namespace bestof {

// activation: kGelu, kGeluTanh or kSilu.
struct ActivationProblem {
  long count;
  Activation activation;
  Element element;  // of all arrays
};

// Writes the activation of x to y, which may be x.
using ActivationForward = void(const ActivationProblem&, const void* x, void* y, int threads);

// Writes gradient * (the derivative of the activation at x) to `slope`, which may be one of both.
using ActivationBackward = void(const ActivationProblem&, const void* gradient, const void* x,
                                void* slope, int threads);

BESTOF_EACH_ISA(ActivationForward activation_forward; ActivationBackward activation_backward;)

}  // namespace bestof
