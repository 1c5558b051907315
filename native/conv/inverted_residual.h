// Up to three convolutions as one: 1x1 with more outputs (the expansion), depthwise, and 1x1 with
// fewer (the projection), as the inverted residuals of MobileNetV2 (Sandler et al., 2018).
#pragma once
#include "conv/problem.h"
#include "simd/each_isa.h"

namespace bestof {

// depthwise: the problem in the middle; its channels are those of the expanded image. in_channels:
// of x; 0 if nothing is expanded, and x is the image itself. out_channels: of y; 0 if nothing is
// projected, and the depthwise results are y. The 1x1 convolutions have stride 1, no padding and
// one group. x, y and the residual hold the element of the problem in the middle.
struct InvertedResidual {
  Problem depthwise;
  long in_channels, out_channels;

  bool expands() const { return in_channels > 0; }
  bool projects() const { return out_channels > 0; }
};

// weights: packed, as `convgemm` or `convgemm_bf16`, and `depthwise`, pack them. Only the last
// layer may have a residual, and none pools.
struct LayerCall {
  const void* weights = nullptr;
  Epilogue epilogue;
};

struct InvertedResidualCall {
  const void* x;
  LayerCall expansion, depthwise, projection;
  void* result;
  float* scratch;  // 64-byte aligned, as many floats as the pass asks for
  int threads;
};

struct InvertedResidualPass {
  void (*run)(const InvertedResidual&, const InvertedResidualCall&);
  long (*scratch_floats)(const InvertedResidual&, int threads);
};

// The 1x1 convolutions multiply float32, or bfloat16. Both take tensors of either, convert what
// they multiply, and sum float32. All other values between the layers are float32.
BESTOF_EACH_ISA(extern const InvertedResidualPass inverted_residual;)
BESTOF_EACH_ISA(extern const InvertedResidualPass inverted_residual_bf16;)

}  // namespace bestof
