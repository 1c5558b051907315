// Channels of several values in NHWC, gathered into one value: a concatenation, a part of one, or
// a channel shuffle of one.
#pragma once
#include "conv/problem.h"
#include "simd/each_isa.h"

namespace bestof {

// Channels [first, first + count) of a source with `width` channels. They go to channels at, at +
// step, at + 2 step, ... of the result.
struct ChannelRun {
  long source, width, first, count, at;
};

// The runs write every channel of the result once.
struct ChannelProblem {
  long pixels, channels, step;  // of the result
  Element element;
  const ChannelRun* runs;
  long run_count;
};

using GatherChannels = void(const ChannelProblem& p, const void* const* sources, void* y,
                            int threads);

BESTOF_EACH_ISA(GatherChannels gather_channels;)

}  // namespace bestof
