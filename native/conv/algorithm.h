// A convolution algorithm: one row of the table that bindings, tests and benchmarks enumerate.
#pragma once
#include "conv/problem.h"

namespace bestof {

// One of the three passes of an algorithm. An algorithm without it has supports == nullptr.
struct Pass {
  bool (*supports)(const Problem&);
  // Floats of the weights in this pass's own layout; 0, and pack == nullptr, where they are used as
  // they come.
  long (*packed_floats)(const Problem&);
  void (*pack)(const Problem&, const float* w, float* packed, int threads);
  long (*scratch_floats)(const Problem&, int threads);
  void (*run)(const Problem&, const Call&);
  // Promised rms error over rms of the result, against float64, with up to 512 channels; times
  // sqrt(C / 512) above.
  double error_growth;
  double (*flops)(const Problem&);
  // What rounding operands to bfloat16 adds to that, however many channels there are.
  double rounding = 0.0;
  bool pools = false;  // whether it serves an epilogue that pools
};

struct Algorithm {
  const char* name;
  Pass forward, backward_input, backward_weight;
  bool bfloat16 = false;  // whether it takes tensors of bfloat16 as well
};

inline bool applies(const Algorithm& algorithm, const Pass& pass, const Problem& p) {
  return pass.supports && (p.element == Element::kFloat32 || algorithm.bfloat16) &&
         pass.supports(p);
}

}  // namespace bestof
