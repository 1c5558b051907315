#pragma once
#include "simd/each_isa.h"

namespace bestof {

// The axes of a transposition in the order of y, those that stay neighbours joined into one:
// extent, and the stride in x and in y, in elements. None is empty.
struct JoinedAxes {
  int count;
  long extent[4], read[4], write[4];
};

BESTOF_EACH_ISA(void transpose_blocked(const float* x, const JoinedAxes& axes, float* y,
                                       int threads);)

}  // namespace bestof
