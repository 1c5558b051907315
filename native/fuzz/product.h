// The fuzzer's products of matrices.
#pragma once
#include <random>
#include <vector>

#include "simd/kernels.h"

namespace bestof {
namespace fuzz {

// Compares a random product with a naive sum in double, by every row of the table that applies. A
// and B lie anyhow. Counts in `computed` how often each row ran. Returns 0, or 1 after printing
// what was wrong.
int try_product(const Kernels& kernels, std::mt19937& random, std::vector<long>& computed);

}  // namespace fuzz
}  // namespace bestof
