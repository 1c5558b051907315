// Softmax along any axis of an array.
#pragma once
#include "simd/each_isa.h"

namespace bestof {

// Arrays of [outer, size, inner]; the sums are taken along `size`.
struct SoftmaxProblem {
  long outer, size, inner;
};

// y may be x.
using Softmax = void(const SoftmaxProblem&, const float* x, float* y, int threads);

BESTOF_EACH_ISA(Softmax softmax;)

}  // namespace bestof
