// Measures the peak of multiply-adds of a processor, with which kernels are compared.
#pragma once
#include "simd/each_isa.h"

namespace bestof {

// Runs `steps` rounds of multiply-adds in registers on every thread, and returns their
// FLOPs.
using MultiplyAdds = double(long steps, int threads);

BESTOF_EACH_ISA(MultiplyAdds multiply_adds;)

}  // namespace bestof
