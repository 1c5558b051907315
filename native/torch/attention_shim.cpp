#include "attention_shim.h"

#include <atomic>

#include "determinism.h"
#include "python_error.h"

namespace shim {

namespace {

// The shim that was put in last. A thread may still call it after it was taken out.
std::atomic<AttentionShim*> current{nullptr};
stable::Library library = nullptr;

using Attention = Attended (*)(void* functor, uint64_t keys, stable::Tensor q, stable::Tensor k,
                               stable::Tensor v, double dropout, bool causal,
                               const OptionalTensor* mask, std::optional<double> scale);
using Boxed = void (*)(void* functor, const void* operation, uint64_t keys, void* stack);

Attended attention_kernel(void*, uint64_t keys, stable::Tensor q, stable::Tensor k,
                          stable::Tensor v, double dropout, bool causal, const OptionalTensor* mask,
                          std::optional<double> scale) {
  const AttentionCall call{keys, q, k, v, dropout, causal, mask, scale};
  return current.load(std::memory_order_acquire)->attend(call);
}

// Boxed calls come from torch.ops and from modes that intercept operators: PyTorch answers them.
void boxed_kernel(void*, const void* operation, uint64_t keys, void* stack) {
  const KernelFunction& original = current.load(std::memory_order_acquire)->original();
  reinterpret_cast<Boxed>(original.boxed)(original.functor, operation, keys, stack);
}

// Attention that Python is to compute.
class AttentionQuestion final : public Question {
 public:
  explicit AttentionQuestion(const AttentionCall& call) : call_(call) {}

  PyObject* arguments(const Conversions& conversions) override {
    const stable::Tensor mask = call_.mask();
    PyObject* tensors = to_python({call_.q, call_.k, call_.v, mask}, conversions);
    if (tensors == nullptr) return nullptr;
    PyObject* scale = call_.scale.has_value() ? PyFloat_FromDouble(*call_.scale) : Py_None;
    if (!call_.scale.has_value()) Py_INCREF(scale);
    PyObject* given =
        scale == nullptr
            ? nullptr
            : Py_BuildValue("(OOOOOO)", PyList_GetItem(tensors, 0), PyList_GetItem(tensors, 1),
                            PyList_GetItem(tensors, 2), call_.causal ? Py_True : Py_False,
                            mask == nullptr ? Py_None : PyList_GetItem(tensors, 3), scale);
    Py_XDECREF(scale);
    Py_DECREF(tensors);
    return given;
  }
  bool take(PyObject* result, const Conversions& conversions) override {
    return from_python(result, results_, 2, conversions);
  }
  stable::Tensor result(int place) const {
    return reinterpret_cast<stable::Tensor>(results_[place]);
  }

 private:
  const AttentionCall& call_;
  stable::Value results_[2] = {};
};

}  // namespace

AttentionShim::~AttentionShim() {
  Py_XDECREF(answer_);
  Py_XDECREF(kept_);
}

bool AttentionShim::put_in() {
  if (library != nullptr) return false;
  if (stable::aoti_torch_library_init_impl("aten", "CPU", "bestof.torch.shim", 0, &library) != 0) {
    library = nullptr;
    return false;
  }
  AttentionShim* before = current.exchange(this, std::memory_order_acq_rel);
  KernelFunction kernel;
  kernel.boxed = reinterpret_cast<void*>(&boxed_kernel);
  kernel.unboxed = reinterpret_cast<void*>(&attention_kernel);
  if (register_kernel(library, ATTENTION, kernel)) return true;
  take_out();
  current.store(before, std::memory_order_release);
  return false;
}

void AttentionShim::take_out() {
  if (library == nullptr || current.load() != this) return;
  stable::aoti_torch_delete_library_object(library);
  library = nullptr;
}

Attended AttentionShim::by_pytorch(const AttentionCall& call) const {
  return reinterpret_cast<Attention>(original_.unboxed)(original_.functor, call.keys, call.q,
                                                        call.k, call.v, call.dropout, call.causal,
                                                        call.optional_mask, call.scale);
}

Attended AttentionShim::attend(const AttentionCall& call) {
  if (!call.is_worth(least_) || is_deterministic()) return by_pytorch(call);
  Call look;
  if (!call.describe(look)) return by_pytorch(call);
  Known* known = known_.find(look);
  if (known != nullptr && !is_sampled(*known)) {
    known->count();
    // `note` of this shim takes no other kernels.
    const auto* native =
        static_cast<const NativeAttention*>(known->native.load(std::memory_order_acquire));
    stable::Tensor results[2] = {};
    if (native == nullptr || !allows_native() || !native->run(call, results))
      return by_pytorch(call);
    return Attended(results[0], results[1]);
  }
  asked_.fetch_add(1, std::memory_order_relaxed);
  AttentionQuestion question(call);
  ask(answer_, question, &look);
  return Attended(question.result(0), question.result(1));
}

}  // namespace shim
