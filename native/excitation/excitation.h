// Squeeze-and-excitation in NHWC: y = last(x * gate + residual), where the gate of a channel is
// computed from the means of all channels of the image (Hu et al., 2018, "Squeeze-and-excitation
// networks"):
//   gate = logistic(excite * inner(squeeze * mean + squeeze_bias) + excite_bias)
#pragma once
#include "conv/problem.h"
#include "simd/each_isa.h"

namespace bestof {

struct ExcitationProblem {
  long batch, pixels, channels, hidden;
  bool hard;  // whether the logistic function is clamp(v + 3, 0, 6) / 6
  Activation inner, last;
  float inner_slope, last_slope;
};

// squeeze [hidden, channels], excite [channels, hidden]. A null pointer stands for no bias or no
// residual. y may be x or the residual. scratch: excitation_floats long, 64-byte aligned.
struct ExcitationCall {
  const float *x, *squeeze, *squeeze_bias, *excite, *excite_bias, *residual;
  float *y, *scratch;
  int threads;
};

inline long excitation_floats(const ExcitationProblem& p, int threads) {
  const long channels = (p.channels + 15) / 16 * 16, hidden = (p.hidden + 15) / 16 * 16;
  return (threads + 1) * channels + hidden;
}

using Excite = void(const ExcitationProblem& p, const ExcitationCall& call);

BESTOF_EACH_ISA(Excite excite;)

}  // namespace bestof
