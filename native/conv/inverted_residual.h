// Up to three convolutions as one: 1x1 with more outputs (the expansion), depthwise, and 1x1 with
// fewer (the projection), as the inverted residuals of MobileNetV2 (Sandler et al., 2018).
#pragma once
#include "conv/problem.h"
#include "simd/each_isa.h"

namespace bestof {

// depthwise: the problem in the middle; its channels are those of the expanded image. in_channels:
// of x; 0 if nothing is expanded, and x is the image itself. out_channels: of y; 0 if nothing is
// projected, and the depthwise results are y. The 1x1 convolutions have stride 1, no padding and
// one group. All tensors are float32.
struct InvertedResidual {
  Problem depthwise;
  long in_channels, out_channels;

  bool expands() const { return in_channels > 0; }
  bool projects() const { return out_channels > 0; }
};

// weights: packed, as `convgemm` and `depthwise` pack them. Only the last layer may have a
// residual, and none pools.
struct LayerCall {
  const float* weights = nullptr;
  Epilogue epilogue;
};

struct InvertedResidualCall {
  const float* x;
  LayerCall expansion, depthwise, projection;
  float* result;
  float* scratch;  // 64-byte aligned, as many floats as the pass asks for
  int threads;
};

struct InvertedResidualPass {
  void (*run)(const InvertedResidual&, const InvertedResidualCall&);
  long (*scratch_floats)(const InvertedResidual&, int threads);
};

BESTOF_EACH_ISA(extern const InvertedResidualPass inverted_residual;)

}  // namespace bestof
