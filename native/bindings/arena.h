// Scratch memory of the calling thread. It grows to the largest problem that the thread has met,
// and is freed when the thread ends.
#pragma once
#include <cstddef>
#include <memory>

namespace bestof {

// Memory for kernels, aligned to a cache line. From 4 MiB on it is aligned to huge pages, which
// save TLB misses where kernels stream weights.
struct Free {
  void operator()(float* memory) const;
};
using Memory = std::unique_ptr<float[], Free>;

// Returns null if there is no memory.
Memory allocate(std::size_t floats);

// Returns at least `floats` floats with undefined content; null if there is no memory.
float* scratch(std::size_t floats);

// For tests: fills scratch with NaN before each use, and writes a guard behind its end.
void check_scratch(bool on);

// Returns whether the guard of the last `scratch` call is intact; true if nothing is checked.
bool guard_stands();

}  // namespace bestof
