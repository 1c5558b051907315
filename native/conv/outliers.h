#pragma once
#include "simd/each_isa.h"

namespace bestof {

// Returns whether an element of x [images, height, width, channels] stands out so far that an
// algorithm with transformed operands would carry its rounding into results that do not read it:
//
// - an element is NaN or infinite, or its square overflows;
// - the sum of squares of a block of 4 x 4 pixels is more than 2^8 times the geometric mean over
//   all blocks that are not zero. Natural images, and what layers make of them, stay below 2^3.5,
//   objects on a black ground below 2^7.5. With 2^12 in place of 2^8, an element just below it
//   added 3.4 times the promised error to results of the same tile that do not read it;
// - fewer than one block in eight is not zero, or a single one. A result there is the bias.
//
// The answer does not depend on the number of threads.
BESTOF_EACH_ISA(bool has_outliers(const float* x, long images, long height, long width,
                                  long channels, int threads);)

}  // namespace bestof
