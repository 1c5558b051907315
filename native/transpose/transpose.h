#pragma once
#include <cstddef>

namespace bestof {

// The loop orders of a 4-D transposition: which side is accessed contiguously.
enum class LoopOrder { kReadContiguous, kWriteContiguous };

// Writes x with its axes permuted to y: y.shape[i] = x.shape[axes[i]]. x and y are C-contiguous
// 4-byte elements and do not overlap. The outermost loop is parallel.
void transpose4d(const float* x, const std::size_t shape[4], const int axes[4], LoopOrder order,
                 float* y);

}  // namespace bestof
