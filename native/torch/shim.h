// The convolutions of PyTorch's dispatcher on the CPU, answered without Python where PyTorch as is
// was chosen, or a kernel of ours.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <atomic>
#include <memory>
#include <vector>

#include "arguments.h"
#include "known_calls.h"
#include "lent_weights.h"
#include "native_convolution.h"
#include "stable_abi.h"

namespace shim {

// Every so many calls of a kind are Python's all the same: selectors are to see how long what was
// chosen takes.
constexpr uint32_t ASKED_EVERY = 64;

class Shim {
 public:
  // `forward` and `backward` answer what is not known, with the arguments of aten::convolution and
  // aten::convolution_backward. A training pass is theirs while the dict `kept` has anything, and
  // kernels of ours are while the list `first_only` does. All references are its own from here on.
  Shim(Conversions conversions, PyObject* forward, PyObject* backward, PyObject* kept,
       PyObject* first_only)
      : conversions_(conversions),
        forward_(forward),
        backward_(backward),
        kept_(kept),
        first_only_(first_only) {}
  ~Shim();

  // False, and nothing is changed, where another one is registered or PyTorch refuses.
  bool put_in();
  void take_out();

  uint64_t generation() const { return known_.generation(); }
  void forget() { known_.forget(); }
  // A level is part of what every call looks like: under another one the same tensors are another
  // problem's.
  void set_level(int64_t level);
  // Of the call that Python answers in this thread at present. False where the shim will not answer
  // such calls: there is none, it has another form, or the table is full. `native`: what was
  // chosen, null for PyTorch as is.
  bool note(uint64_t generation, std::vector<std::shared_ptr<Count>> counts,
            std::shared_ptr<const NativeConvolution> native);
  // Whether the call that Python answers in this thread at present is one that a kernel of ours was
  // chosen for and could not take: its weights are to be packed first, or it looks otherwise than
  // the call that was noted.
  static bool is_refused();
  // Packed weights for calls that Python does not answer; null where there is no place.
  Lent* lend(const Lent::Weights& weights) { return lent_.lend(weights); }

  void convolve(stable::Value* stack);
  void differentiate(stable::Value* stack);

 private:
  // What answers such a call; null where Python does.
  Known* answer_to(const Call& call, bool is_training);
  void ask(PyObject* function, Arguments& arguments, const Call* call, stable::Value* stack,
           uint64_t results, bool refused = false);

  Conversions conversions_;
  PyObject *forward_, *backward_, *kept_, *first_only_;
  KnownCalls known_;
  LentWeights lent_;
  std::atomic<int64_t> level_{0};
};

}  // namespace shim
