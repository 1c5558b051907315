// The fuzzer's test of activations, softmax, Bernoulli numbers, and norms of training.
#pragma once
#include <random>

#include "simd/kernels.h"

namespace bestof {
namespace fuzz {

// Compares a random activation, softmax, layer norm and group norm with loops in double. Returns 0,
// or 1 after printing what was wrong. tests/numerics holds tighter bounds.
int try_training(const Kernels& kernels, std::mt19937& random);

}  // namespace fuzz
}  // namespace bestof
