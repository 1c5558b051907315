// A 2-D convolution: its problem, what is done to each result, and the operands of one
// call.
#pragma once

namespace bestof {

// What tensors hold. A bias is float32 always.
enum class Element { kFloat32, kBfloat16 };

struct Bfloat16 {
  unsigned short bits;
};

// x [batch, in_height, in_width, in_channels], w [out_channels, kernel_height, kernel_width,
// in_channels / groups], y [batch, out_height, out_width, out_channels]. Pads may be negative (a
// crop), which the input gradients need.
struct Problem {
  long batch, in_height, in_width, in_channels;
  long out_channels, kernel_height, kernel_width;
  long out_height, out_width;
  long stride_y, stride_x, dilation_y, dilation_x;
  long pad_top, pad_bottom, pad_left, pad_right;
  long groups;
  Element element = Element::kFloat32;  // of x, w and y
  bool planes = false;                  // x is [batch, in_channels, in_height, in_width]
};

// The products in each sum.
inline long terms_of(const Problem& p) {
  return p.kernel_height * p.kernel_width * (p.in_channels / p.groups);
}

#define BESTOF_ACTIVATION(enumerator, name, falls, result) enumerator,
enum class Activation {
#include "conv/activations.inc"
};
#undef BESTOF_ACTIVATION

// y = activation(convolution + bias + residual). A null pointer leaves its part out. With pooling,
// y holds the largest of each 2x2 results. Pooling needs a row with `pools`, an activation that
// never falls, and no residual. With a pitch, y is a part of the channels of wider pixels, and what
// lies between two pixels of the part stays as it is. That needs a row with `pitches`, and neither
// a residual nor pooling.
struct Epilogue {
  const float* bias = nullptr;     // [out_channels]
  const void* residual = nullptr;  // as y
  Activation activation = Activation::kNone;
  float slope = 0.0f;  // of kLeakyRelu below zero
  bool pooled = false;
  long pitch = 0;  // elements from pixel to pixel of y; 0: out_channels
};

inline long pixel_pitch(const Problem& p, const Epilogue& epilogue) {
  return epilogue.pitch ? epilogue.pitch : p.out_channels;
}

// first and second: x and w (forward; packed where the pass packs), the gradient of y and w (input
// gradient), the gradient of y and x (weight gradient). They and the result hold the element of the
// problem; packed weights hold whatever the pass packs.
struct Call {
  const void* first;
  const void* second;
  void* result;
  Epilogue epilogue;  // forward only
  float* scratch;     // 64-byte aligned, scratch_floats long
  int threads;
};

}  // namespace bestof
