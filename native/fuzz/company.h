// The buffers of the fuzzer, and its tests of the kernels beside convolution.
#pragma once
#include <cstdlib>
#include <memory>
#include <random>

#include "simd/kernels.h"

namespace bestof {
namespace fuzz {

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<float[], Free>;
using Buffer16 = std::unique_ptr<Bfloat16[], Free>;

// Whether buffers that are not filled hold NaN, so that elements which a kernel leaves unwritten
// show.
extern bool poison_results;

// Returns memory aligned as promised to kernels, of the exact size, so that the next byte is
// poisoned.
Buffer exact(long count, std::mt19937& random, bool fill);

// The same of bfloat16, aligned to an element alone.
Buffer16 exact16(long count, std::mt19937& random, bool fill);
double value_of(Bfloat16 v);
inline double value_of(float v) {
  return v;
}

long pick(std::mt19937& random, long low, long high);

// Compares random poolings, transpositions and focal losses with naive loops in double. Returns 0,
// or 1 after printing what was wrong.
int try_company(const Kernels& kernels, std::mt19937& random);

}  // namespace fuzz
}  // namespace bestof
