// 2-D pooling in NHWC: its problem, and the functions that compute it.
#pragma once
#include "conv/problem.h"
#include "simd/each_isa.h"

namespace bestof {

struct PoolProblem {
  long batch, in_height, in_width, channels, out_height, out_width;
  long kernel_height, kernel_width, stride_y, stride_x, pad_top, pad_left;
  bool maximum;        // otherwise the average
  bool count_padding;  // the average divides by the whole kernel, not by the elements inside the
                       // image
  Element element = Element::kFloat32;  // of x and y, forward; averages are summed in float32
  // Elements from pixel to pixel of y, forward; 0: channels. With a pitch, y is a part of the
  // channels of wider pixels, and the others stay as they are.
  long pitch = 0;
};

inline long pixel_pitch(const PoolProblem& p) {
  return p.pitch ? p.pitch : p.channels;
}

using PoolForward = void(const PoolProblem& p, const void* x, void* y, int threads);
// x is read only if `maximum` is set.
using PoolBackward = void(const PoolProblem& p, const float* grad, const float* x, float* result,
                          int threads);

BESTOF_EACH_ISA(PoolForward pool_forward; PoolBackward pool_backward;)

}  // namespace bestof
