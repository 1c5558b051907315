// A convolution algorithm: what it computes, and what its row of the table says about it.
//
// conv/algorithms.inc has one row for each algorithm. The build, the tables of every instruction
// set, the bindings, the fuzzer, the tests and the benchmarks all read that list. The code of an
// algorithm stands in conv/NAME.cpp, which defines `passes::NAME`. Nothing else names it.
#pragma once
#include "conv/domain.h"
#include "conv/dtypes.h"
#include "conv/problem.h"

namespace bestof {

// One of the three passes of an algorithm. `run` is null where the algorithm lacks the pass.
struct Pass {
  void (*run)(const Problem&, const Call&) = nullptr;
  long (*scratch_floats)(const Problem&, int threads) = nullptr;
  double (*flops)(const Problem&) = nullptr;
  // Floats of the weights in the layout of this pass, and the function that writes them. Both are
  // null where the pass reads weights as they are.
  long (*packed_floats)(const Problem&) = nullptr;
  void (*pack)(const Problem&, const void* w, float* packed, int threads) = nullptr;
  // Narrows the domain of the algorithm; null where the pass takes all of it.
  bool (*supports)(const Problem&) = nullptr;
};

struct Passes {
  Pass forward = {}, backward_input = {}, backward_weight = {};
};

// A bound of the error against float64, relative to the rms of the result: of the rms of the error,
// and of its largest magnitude.
struct ErrorBound {
  double rms = 0.0, maximum = 0.0;
};

// What rounding the result to bfloat16 adds: 1.7e-3 rms where results are many.
constexpr ErrorBound kRoundedResult = {3e-3, 3e-2};

// The strictest level of accuracy that allows an algorithm.
enum class Accuracy { kFloat32, kRelaxed };

// The operands of float32 that are rounded to bfloat16 before they are multiplied.
enum class Rounds { kNothing, kWeights, kBoth };

// A row of conv/algorithms.inc.
struct Algorithm {
  const char* name;
  const Passes* passes;
  Domain domain = {};
  DtypeColumns dtypes = {};
  // Error of the sums, up to 512 channels; times sqrt(C / 512) above.
  ErrorBound error = {};
  Rounds rounds = Rounds::kNothing;
  ErrorBound rounding = {};  // what rounding adds to `error`, whatever the number of channels
  Accuracy accuracy = Accuracy::kFloat32;
  bool transforms = false;  // whether it multiplies transformed operands, to multiply less
  bool pools = false;       // whether its forward pass serves an epilogue that pools
  bool pitches = false;     // whether its forward pass serves an epilogue with a pitch
  bool parts = false;       // whether it multiplies float32 as parts of bfloat16
  bool emulated = false;    // whether this instruction set lacks the products that it is made of
  bool eager = false;       // whether PyTorch programs try it for each convolution
  bool linear = false;      // whether plans try it for linear layers
  bool planes = false;      // whether its forward pass also reads x in channels first
};

inline bool applies(const Algorithm& algorithm, const Pass& pass, const Problem& p) {
  const bool reads = !p.planes || (algorithm.planes && &pass == &algorithm.passes->forward);
  return pass.run && reads && algorithm.dtypes.take(p.element) && lies_in(algorithm.domain, p) &&
         (!pass.supports || pass.supports(p));
}

}  // namespace bestof
