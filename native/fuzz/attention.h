// The fuzzer's attention.
#pragma once
#include <random>

#include "simd/kernels.h"

namespace bestof {
namespace fuzz {

// Compares random attention and its gradients with naive sums in double. Returns 0,
// or 1 after printing what was wrong.
int try_attention(const Kernels& kernels, std::mt19937& random);

}  // namespace fuzz
}  // namespace bestof
