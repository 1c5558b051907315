// One step of LAMB for one tensor, in two passes: moments and norms, then the update.
#pragma once
#include "simd/each_isa.h"

namespace bestof {

// m = first m + first_rest g, v = second v + second_rest g^2, u = m / (factor sqrt(v) + term) +
// decay x.
struct LambProblem {
  long count;
  float first, first_rest, second, second_rest, factor, term, decay;
};

// Elements whose squares are summed on their own, so that the norms do not depend on the number of
// threads.
constexpr long kLambPart = 16384;

inline long lamb_parts(long count) {
  return (count + kLambPart - 1) / kLambPart;
}

// Updates m and v. Writes two sums of squares a part: of x, and of u.
using LambMoments = void(const LambProblem& p, const float* x, const float* g, float* m, float* v,
                         double* sums, int threads);
// x -= rate u.
using LambUpdate = void(const LambProblem& p, float rate, const float* m, const float* v, float* x,
                        int threads);

BESTOF_EACH_ISA(LambMoments lamb_moments; LambUpdate lamb_update;)

}  // namespace bestof
