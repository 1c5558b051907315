// Layer norm and RMS norm of rows, with the addition before it.
#pragma once
#include "conv/problem.h"
#include "simd/each_isa.h"

namespace bestof {

// `centred`: the mean of each row is subtracted (layer norm); else not (RMS norm).
struct NormProblem {
  long rows, size;
  double epsilon;
  bool centred;
  Element element = Element::kFloat32;  // of all arrays
};

// Any but x and y may be null. y may be x, and must not overlap the others unless it is equal to
// `residual`.
struct NormCall {
  const void *x, *residual;   // [rows, size]: what is normed is their sum
  const void *scale, *shift;  // [size]
  void* y;                    // [rows, size]
  int threads;
};

using Normalize = void(const NormProblem&, const NormCall&);

BESTOF_EACH_ISA(Normalize normalize;)

}  // namespace bestof
