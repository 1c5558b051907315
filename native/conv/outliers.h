#pragma once
#include "simd/each_isa.h"

namespace bestof {

// Returns whether an element of x [images, height, width, channels] stands out so far that an
// algorithm with transformed operands would carry its rounding into results that do not read it:
//
// - an element is NaN or infinite, or its square overflows;
// - the sum of squares of a block of 4 x 4 pixels is more than 2^12 times the geometric mean over
//   all blocks that are not zero. An element of a tile of F(4) then adds less than the promised
//   error to the results of blocks with that mean;
// - more than half of the blocks are zero, but not all. A result there is the bias.
//
// The answer does not depend on the number of threads.
BESTOF_EACH_ISA(bool has_outliers(const float* x, long images, long height, long width,
                                  long channels, int threads);)

}  // namespace bestof
