// The fuzzer's test of inverted residuals.
#pragma once
#include <random>

#include "simd/kernels.h"

namespace bestof {
namespace fuzz {

// Compares a random inverted residual with naive sums in double. Returns 0, or 1 after printing
// what was wrong.
int try_inverted_residuals(const Kernels& kernels, std::mt19937& random);

}  // namespace fuzz
}  // namespace bestof
