// Which convolutions an algorithm is written for.
#pragma once
#include "conv/problem.h"

namespace bestof {

// The rows (pixels) that an algorithm for few rows takes at most.
constexpr long kMostRows = 8;

enum class Shapes { kAny, kKernel, kGroupedKernel, kDepthwise, kFewRows };

// The domain of an algorithm, as its row states it: the table refuses every other problem, and the
// fuzzer and the tests draw their problems from it. A pass may support less (`Pass::supports`),
// never more.
//   kAny        every convolution
//   kKernel     one kernel size and one stride, neither dilation nor groups
//   kGroupedKernel   one kernel size and one stride, more than one group, no dilation
//   kDepthwise  one input and one output channel a group
//   kFewRows    linear layers (1x1, no padding, no groups) of at most kMostRows pixels
struct Domain {
  Shapes shapes = Shapes::kAny;
  long kernel_height = 0, kernel_width = 0, stride = 0;  // of kKernel, kGroupedKernel
};

constexpr Domain kernel_of(long height, long width, long stride) {
  return {Shapes::kKernel, height, width, stride};
}
constexpr Domain grouped_kernel_of(long height, long width, long stride) {
  return {Shapes::kGroupedKernel, height, width, stride};
}
constexpr Domain kDepthwise = {Shapes::kDepthwise};
constexpr Domain kFewRows = {Shapes::kFewRows};

inline bool lies_in(const Domain& domain, const Problem& p) {
  switch (domain.shapes) {
    case Shapes::kAny:
      return true;
    case Shapes::kKernel:
    case Shapes::kGroupedKernel:
      return p.kernel_height == domain.kernel_height && p.kernel_width == domain.kernel_width &&
             p.stride_y == domain.stride && p.stride_x == domain.stride && p.dilation_y == 1 &&
             p.dilation_x == 1 && (p.groups > 1) == (domain.shapes == Shapes::kGroupedKernel);
    case Shapes::kDepthwise:
      return p.groups == p.in_channels && p.groups == p.out_channels;
    case Shapes::kFewRows:
      return p.kernel_height == 1 && p.kernel_width == 1 && p.stride_y == 1 && p.stride_x == 1 &&
             p.groups == 1 && p.pad_top == 0 && p.pad_bottom == 0 && p.pad_left == 0 &&
             p.pad_right == 0 && p.batch * p.in_height * p.in_width <= kMostRows;
  }
  return false;
}

}  // namespace bestof
