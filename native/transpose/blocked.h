#pragma once
#include "simd/each_isa.h"

namespace bestof {

// The axes of a transposition in the order of y. Axes that stay neighbours are joined into one. For
// each: its extent, and its strides in x and y in elements. No extent is zero.
struct JoinedAxes {
  int count;
  long extent[4], read[4], write[4];
};

BESTOF_EACH_ISA(void transpose_blocked(const float* x, const JoinedAxes& axes, float* y,
                                       int threads);)

}  // namespace bestof
