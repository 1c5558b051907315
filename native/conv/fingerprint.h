#pragma once
#include "simd/each_isa.h"

namespace bestof {

// sums[k]: those of the elements of filter k, each times a factor between 1 and 2 of its own, so
// that no exchange of elements goes unseen. What it misses is below the rounding of the sum of one
// filter, and shows where an image is zero under all that is large in the filter: who can tell in
// another way too whether weights were written to, should. Sums that cross filters would let a
// large one hide what changes in its neighbours. By any number of threads the same bits; not by
// every instruction set.
BESTOF_EACH_ISA(void fingerprint(const float* w, long filters, long elements, float* sums,
                                 int threads);)

}  // namespace bestof
