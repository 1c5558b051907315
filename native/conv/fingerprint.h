#pragma once
#include "simd/each_isa.h"

namespace bestof {

// Returns a hash of the bits of `memory`. If one element of at most 4 bytes changes, the hash
// always changes. If several change, it stays the same with a probability of about 2^-32, whatever
// their magnitudes. The hash does not depend on the number of threads. It depends on the
// instruction set.
BESTOF_EACH_ISA(unsigned long long fingerprint(const void* memory, long bytes, int threads);)

}  // namespace bestof
