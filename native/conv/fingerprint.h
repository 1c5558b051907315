#pragma once
#include "simd/each_isa.h"

namespace bestof {

// Returns a hash of the bits of `memory`. If one element of at most 4 bytes changes, by one bit or
// more, the hash changes for certain. If several change, it stays the same with a chance of about
// 2^-32, for no magnitude hides another one. Every number of threads gives the same hash; different
// instruction sets give different ones.
BESTOF_EACH_ISA(unsigned long long fingerprint(const void* memory, long bytes, int threads);)

}  // namespace bestof
