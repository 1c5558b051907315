// Kernels for the convolutions of PyTorch's dispatcher on the CPU. They answer calls without Python
// if PyTorch's own kernel or a native kernel was chosen, and ask Python about all other calls.
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

// One in so many calls goes to Python all the same, so that the selectors see how long the winner
// takes.
constexpr uint32_t ASKED_EVERY = 64;

class Shim {
 public:
  // `forward` and `backward` answer unknown calls, with the arguments of aten::convolution and
  // aten::convolution_backward. They also answer training passes while the dict `kept` is not
  // empty, and calls of native kernels while the list `first_only` is not. The shim takes the
  // references.
  Shim(Conversions conversions, PyObject* forward, PyObject* backward, PyObject* kept,
       PyObject* first_only)
      : conversions_(conversions),
        forward_(forward),
        backward_(backward),
        kept_(kept),
        first_only_(first_only) {}
  ~Shim();

  // Returns false, without a change, if another shim is registered or PyTorch refuses.
  bool put_in();
  void take_out();

  uint64_t generation() const { return known_.generation(); }
  void forget() { known_.forget(); }
  // Sets the level of accuracy, which is part of every call: the same tensors at another level are
  // another problem.
  void set_level(int64_t level);
  // Notes what answers calls like the one that Python answers in this thread now: `native`, or null
  // for PyTorch's own kernel. Returns false if the shim will not answer them: there is no such
  // call, it has another form, or the table is full.
  bool note(uint64_t generation, std::vector<std::shared_ptr<Count>> counts,
            std::shared_ptr<const NativeConvolution> native);
  // Returns whether a native kernel was chosen for the call that Python answers in this thread, but
  // could not take it: its weights must be packed first, or its tensors lie otherwise.
  static bool is_refused();
  // Lends packed weights to calls without Python; null if there is no place.
  Lent* lend(const Lent::Weights& weights) { return lent_.lend(weights); }

  void convolve(stable::Value* stack);
  void differentiate(stable::Value* stack);

 private:
  // Returns what answers a call; null if Python does.
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
