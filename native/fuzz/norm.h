// The fuzzer's test of the norms of rows.
#pragma once
#include <random>

#include "simd/kernels.h"

namespace bestof {
namespace fuzz {

// Compares a random norm of float32 and one of bfloat16 with naive sums in double. Returns 0, or 1
// after printing what was wrong.
int try_norms(const Kernels& kernels, std::mt19937& random);

}  // namespace fuzz
}  // namespace bestof
