#pragma once
#include <cstddef>

namespace bestof {

// The loop orders of a 4-D transposition: which side is walked contiguously.
enum class LoopOrder { kReadContiguous, kWriteContiguous };

// y = x with its axes permuted: y.shape[i] = x.shape[axes[i]]. x and y are C-contiguous, 4-byte
// elements, and do not overlap. Parallel over the outermost non-trivial loop.
void transpose4d(const float* x, const std::size_t shape[4], const int axes[4], LoopOrder order,
                 float* y);

}  // namespace bestof
