// What the kernels of all operators share: the table of decided calls, packed weights that are
// lent, and the way to Python for all other calls.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <atomic>
#include <memory>
#include <vector>

#include "conversions.h"
#include "known_calls.h"
#include "lent_weights.h"

namespace shim {

// One in so many calls goes to Python all the same, so that the selectors see how long the winner
// takes.
constexpr uint32_t ASKED_EVERY = 64;

// A call that Python is to answer.
class Question {
 public:
  // Returns the arguments as a new tuple, and gives up the handles; null with an exception.
  virtual PyObject* arguments(const Conversions& conversions) = 0;
  // Takes Python's result; false with an exception.
  virtual bool take(PyObject* result, const Conversions& conversions) = 0;

 protected:
  ~Question() = default;
};

// A shim registers kernels of its operators in PyTorch's dispatcher. They answer calls without
// Python if the call's kernel is decided, and ask a Python function about other calls.
class Shim {
 public:
  // Native kernels are not called while the list `first_only` is not empty. `places`: see
  // KnownCalls. The shim takes the references.
  Shim(Conversions conversions, PyObject* first_only, uint64_t places)
      : conversions_(conversions), first_only_(first_only), known_(places) {}
  Shim(const Shim&) = delete;
  Shim& operator=(const Shim&) = delete;
  virtual ~Shim();

  // Registers the kernels for a dispatch key. Returns false, without a change, if another shim of
  // these operators is registered or PyTorch refuses.
  virtual bool put_in(const char* key) = 0;
  virtual void take_out() = 0;

  uint64_t generation() const { return known_.generation(); }
  void forget() { known_.forget(); }
  // Sets the level of accuracy, which is part of every call: the same tensors at another level are
  // another problem.
  void set_level(int64_t level);
  // Notes what answers calls like the one that Python answers in this thread now: `native`, or null
  // for PyTorch's own kernel. Returns false if the shim will not answer them: there is no such
  // call, it has another form, or the table is full.
  bool note(uint64_t generation, std::vector<std::shared_ptr<Count>> counts,
            std::shared_ptr<const Native> native);
  // Returns whether a native kernel was chosen for the call that Python answers in this thread, but
  // could not take it: its weights must be packed first, or its tensors lie otherwise.
  static bool is_refused();
  // Computes as settled calls that are noted for this kernel. Returns false, without results, if
  // the kernel refuses.
  bool compute(const Native& native, const stable::Tensor* operands, stable::Tensor* results) {
    return native.run(lent_, operands, results);
  }
  // Lends packed weights to calls without Python; null if there is no place.
  Lent* lend(const Lent::Weights& weights) { return lent_.lend(weights); }

 protected:
  // Returns whether the selectors are to see this call of a decided kernel.
  static bool is_sampled(Known& known);
  // Returns whether the program wants no native kernels at present. The length of a list is one
  // word, so it can be read without Python's lock.
  bool wants_first_only() const { return PyList_GET_SIZE(first_only_) > 0; }
  // Has Python answer, and throws its exception. `call` is null for a call that cannot be noted.
  void ask(PyObject* function, Question& question, const Call* call, bool refused = false);

  Conversions conversions_;
  PyObject* first_only_;
  KnownCalls known_;
  LentWeights lent_;
  std::atomic<int64_t> level_{0};
};

}  // namespace shim
