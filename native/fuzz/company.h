// What the fuzz program has beside convolution: buffers, and the other kernels.
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

// Whether buffers that are not filled hold NaN, so that whatever a kernel leaves unwritten shows in
// its result.
extern bool poison_results;

// Aligned as promised to kernels, and of the exact size, so that the next byte is poisoned.
Buffer exact(long count, std::mt19937& random, bool fill);

// The same of bfloat16, aligned to an element alone.
Buffer16 exact16(long count, std::mt19937& random, bool fill);
double value_of(Bfloat16 v);

long pick(std::mt19937& random, long low, long high);

// Random pooling, transposition and focal loss against naive loops in double; 0, or 1 after telling
// what was wrong.
int try_company(const Kernels& kernels, std::mt19937& random);

}  // namespace fuzz
}  // namespace bestof
