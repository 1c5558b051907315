// Weights in the layout of the kernels, `[group][panel][tap][channel][kPanel]`. The tail of the
// last panel is zero.
#pragma once
#include "conv/operands.h"
#include "conv/problem.h"
#include "gemm/micro_kernel.h"
#include "simd/bfloat16.h"

namespace bestof {
namespace BESTOF_TARGET {

// Weights of one convolution, seen through strides. So an input gradient swaps and flips them
// without a copy. `Element` is float or Bfloat16; packing widens the latter.
template <class Element>
struct Weights {
  const Element* data;  // of group 0, output 0, tap 0, input 0
  long groups, outputs, inputs, height, width;
  long group_stride, output_stride, input_stride, y_stride, x_stride;
};

using WeightView = Weights<float>;

template <class Element>
inline Weights<Element> forward_view(const Problem& p, const Element* w) {
  const long inputs = p.in_channels / p.groups, outputs = p.out_channels / p.groups;
  const long output_stride = p.kernel_height * p.kernel_width * inputs;
  return {w,
          p.groups,
          outputs,
          inputs,
          p.kernel_height,
          p.kernel_width,
          outputs * output_stride,
          output_stride,
          1,
          p.kernel_width * inputs,
          inputs};
}

// Returns the weights that turn the gradient of y into that of x by a convolution: inputs and
// outputs swapped, taps reversed.
inline WeightView flipped_view(const Problem& p, const float* w) {
  WeightView view = forward_view(p, w);
  view.data += (p.kernel_height - 1) * view.y_stride + (p.kernel_width - 1) * view.x_stride;
  view.y_stride = -view.y_stride;
  view.x_stride = -view.x_stride;
  const long outputs = view.outputs, output_stride = view.output_stride;
  view.outputs = view.inputs;
  view.output_stride = 1;
  view.inputs = outputs;
  view.input_stride = output_stride;
  return view;
}

// Returns the problem of the flipped weights, for stride 1. Its pads may be negative.
inline Problem flipped_problem(const Problem& p) {
  Problem q = p;
  q.in_height = p.out_height;
  q.in_width = p.out_width;
  q.out_height = p.in_height;
  q.out_width = p.in_width;
  q.in_channels = p.out_channels;
  q.out_channels = p.in_channels;
  const long reach_y = p.dilation_y * (p.kernel_height - 1),
             reach_x = p.dilation_x * (p.kernel_width - 1);
  q.pad_top = reach_y - p.pad_top;
  q.pad_bottom = reach_y - p.pad_bottom;
  q.pad_left = reach_x - p.pad_left;
  q.pad_right = reach_x - p.pad_right;
  return q;
}

BESTOF_INLINE long packed_floats(long groups, long outputs, long inputs, long taps) {
  return groups * round_up(outputs, kPanel) * inputs * taps;
}

// Packs one panel of one tap: kPanel outputs from `first`, all inputs, as [input][kPanel].
template <class Element>
inline void pack_panel(const Weights<Element>& view, const Element* tap, long first,
                       float* packed) {
  const long count = smaller(view.outputs - first, kPanel);
  const Element* from = tap + first * view.output_stride;
  for (long i = 0; i < view.inputs; ++i) {
    for (long o = count; o < kPanel; ++o) packed[i * kPanel + o] = 0.0f;
  }
  if (view.output_stride == 1) {
    for (long i = 0; i < view.inputs; ++i) {
      for (long o = 0; o < count; ++o)
        packed[i * kPanel + o] = value_of(from[i * view.input_stride + o]);
    }
    return;
  }
  // 16 inputs at a time: each cache line of w is read once, and the written lines stay in L1.
  for (long block = 0; block < view.inputs; block += 16) {
    const long end = smaller(block + 16, view.inputs);
    for (long o = 0; o < count; ++o) {
      const Element* row = from + o * view.output_stride;
      for (long i = block; i < end; ++i)
        packed[i * kPanel + o] = value_of(row[i * view.input_stride]);
    }
  }
}

template <class Element>
inline void pack_weights(const Weights<Element>& view, float* packed, int threads) {
  const long panels = divide_up(view.outputs, kPanel), taps = view.height * view.width;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long item = 0; item < view.groups * panels; ++item) {
    const Element* group = view.data + item / panels * view.group_stride;
    float* to = packed + item * taps * view.inputs * kPanel;
    for (long tap = 0; tap < taps; ++tap, to += view.inputs * kPanel) {
      const Element* from =
          group + tap / view.width * view.y_stride + tap % view.width * view.x_stride;
      pack_panel(view, from, item % panels * kPanel, to);
    }
  }
}

inline double lowered_flops(const Problem& p) {
  return 2.0 * p.batch * p.out_height * p.out_width * p.out_channels * p.kernel_height *
         p.kernel_width * (p.in_channels / p.groups);
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
