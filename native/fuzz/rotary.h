// The fuzzer's test of rotary position embeddings.
#pragma once
#include <random>

#include "simd/kernels.h"

namespace bestof {
namespace fuzz {

// Compares a random embedding of float32 and one of bfloat16 with products in double. Returns 0, or
// 1 after printing what was wrong.
int try_rotary(const Kernels& kernels, std::mt19937& random);

}  // namespace fuzz
}  // namespace bestof
