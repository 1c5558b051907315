// The most multiply-adds that a processor does: what kernels are measured against.
#pragma once
#include "simd/each_isa.h"

namespace bestof {

// Runs `steps` rounds of multiply-adds in registers on every thread, and returns how many FLOPs
// these were in all.
using MultiplyAdds = double(long steps, int threads);

BESTOF_EACH_ISA(MultiplyAdds multiply_adds;)

}  // namespace bestof
