// Scratch of the calling thread, which grows to the largest problem that it met and is given back
// when it ends.
#pragma once
#include <cstddef>
#include <memory>

namespace bestof {

// Memory for kernels: aligned to a cache line; from 4 MiB on, to huge pages, which spare the
// weights' streams the TLB.
struct Free {
  void operator()(float* memory) const;
};
using Memory = std::unique_ptr<float[], Free>;

// Null where there is none left.
Memory allocate(std::size_t floats);

// At least `floats` floats, whose content is undefined; null where memory ran out.
float* scratch(std::size_t floats);

// For tests: with `on`, scratch is filled with NaN before each use, and guarded behind its end.
void check_scratch(bool on);

// Whether the guard of the last `scratch` call still stands; true where nothing is checked.
bool guard_stands();

}  // namespace bestof
