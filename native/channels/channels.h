// Channels of several values in NHWC, gathered into one value: a concatenation, a part of one, or
// a channel shuffle of one. A batch norm with fixed statistics can be part of it.
#pragma once
#include "conv/problem.h"
#include "simd/each_isa.h"

namespace bestof {

// Channels [first, first + count) of a source with `width` channels. They go to channels at, at +
// step, at + 2 step, ... of the result.
struct ChannelRun {
  long source, width, first, count, at;
};

// y = activation(x scale + shift + residual), in float32, with one scale and one shift for each
// channel of the result. The result is in the element of the problem, as is the residual.
struct ChannelNorm {
  const float *scale = nullptr, *shift = nullptr;  // both null: channels are only copied
  Activation activation = Activation::kNone;
  float slope = 0.0f;  // of kLeakyRelu below zero
};

// The runs write every channel of the result once. step is 1 if there is a norm.
struct ChannelProblem {
  long pixels, channels, step;  // of the result
  Element element;
  const ChannelRun* runs;
  long run_count;
  ChannelNorm norm;
};

// residual: null, or as y; it is added if there is a norm. y overlaps no operand.
using GatherChannels = void(const ChannelProblem& p, const void* const* sources,
                            const void* residual, void* y, int threads);

BESTOF_EACH_ISA(GatherChannels gather_channels;)

}  // namespace bestof
