// The fuzzer's tests of gathered and normed channels.
#pragma once
#include <random>

#include "simd/kernels.h"

namespace bestof {
namespace fuzz {

// Compares random concatenations, parts, shuffles and norms with naive loops, in double for norms.
// Returns 0, or 1 after printing what was wrong.
int try_channels(const Kernels& kernels, std::mt19937& random);

}  // namespace fuzz
}  // namespace bestof
