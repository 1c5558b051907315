// Sums of a row of results over the taps of a row of the kernel.
#pragma once
#include "conv/problem.h"
#include "gemm/micro_kernel.h"

namespace bestof {
namespace BESTOF_TARGET {

// Results of a row that are summed at once: 7, 14, 28, 56 and 112 are multiples. Twice as many
// where 32 registers hold their sums: the weights of a row of taps are then loaded half as often.
constexpr int kFew = 7, kMany = kTileRows == 14 ? 14 : kFew;

BESTOF_INLINE long taps_of(const Problem& p) {
  return p.kernel_height * p.kernel_width;
}

// Adds pixel j of a line to the sums that read it under tap s and those behind it. Templates count,
// since GCC 12 keeps sums in memory where loops with conditions do.
template <int kResults, int kWidth, int kStride, int j, int s = 0>
BESTOF_INLINE void add_pixel(Vec pixel, const Vec* weight, Vec* sum) {
  if constexpr (s < kWidth) {
    constexpr int i = (j - s) / kStride;
    if constexpr (j >= s && (j - s) % kStride == 0 && i < kResults) sum[i] += weight[s] * pixel;
    add_pixel<kResults, kWidth, kStride, j, s + 1>(pixel, weight, sum);
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
