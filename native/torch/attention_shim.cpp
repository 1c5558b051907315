#include "attention_shim.h"

#include <atomic>
#include <vector>

#include "guards.h"
#include "python_error.h"

namespace shim {

namespace {

// The shims that were put in last. A thread may still call one after it was taken out.
std::atomic<AttentionShim*> current[ATTENTION_PASSES] = {};
stable::Library libraries[ATTENTION_PASSES] = {};

using Tensor = stable::Tensor;
using Forward = Attended (*)(void* functor, uint64_t keys, Tensor q, Tensor k, Tensor v,
                             double dropout, bool causal, const OptionalTensor* mask,
                             std::optional<double> scale);
using Boxed = void (*)(void* functor, const void* operation, uint64_t keys, void* stack);

Attended forward_kernel(void*, uint64_t keys, Tensor q, Tensor k, Tensor v, double dropout,
                        bool causal, const OptionalTensor* mask, std::optional<double> scale) {
  AttentionShim* shim = current[ATTENTION_FORWARD].load(std::memory_order_acquire);
  Tensor results[MOST_ATTENTION_RESULTS] = {};
  if (shim->attend({keys, q, k, v, dropout, causal, mask, scale}, results))
    return Attended(results[0], results[1]);
  const KernelFunction& original = shim->original();
  return reinterpret_cast<Forward>(original.unboxed)(original.functor, keys, q, k, v, dropout,
                                                     causal, mask, scale);
}

// Boxed calls come from torch.ops and from modes that intercept operators: PyTorch answers them.
void boxed_forward_kernel(void*, const void* operation, uint64_t keys, void* stack) {
  const KernelFunction& original =
      current[ATTENTION_FORWARD].load(std::memory_order_acquire)->original();
  reinterpret_cast<Boxed>(original.boxed)(original.functor, operation, keys, stack);
}

constexpr int BACKWARD_ARGUMENTS = 10;

// Reads the arguments of a backward call. Returns false if they have other types than PyTorch 2.13
// passes.
bool read(StackValue (&given)[BACKWARD_ARGUMENTS], AttentionCall& call, OptionalTensor& mask) {
  for (int i = 0; i < 6; ++i) {
    if (given[i].tag != StackValue::TENSOR) return false;
  }
  const bool has_scale = given[9].tag == StackValue::REAL;
  if (given[6].tag != StackValue::REAL || given[7].tag != StackValue::TRUTH ||
      !(given[8].tag == StackValue::TENSOR || given[8].tag == StackValue::NONE) ||
      !(has_scale || given[9].tag == StackValue::NONE))
    return false;
  bool is_defined = false;  // autograd passes an undefined tensor in place of no mask
  if (given[8].tag == StackValue::TENSOR &&
      stable::aoti_torch_is_defined(given[8].handle(), &is_defined) == 0 && is_defined)
    mask = {given[8].payload.tensor, true};
  call.gradient = given[0].handle();
  call.q = given[1].handle();
  call.k = given[2].handle();
  call.v = given[3].handle();
  call.out = given[4].handle();
  call.logsumexp = given[5].handle();
  call.dropout = given[6].payload.real;
  call.causal = given[7].payload.truth;
  call.optional_mask = &mask;
  if (has_scale) call.scale = given[9].payload.real;
  return true;
}

// All calls of the backward pass are boxed: autograd passes them through a boxed kernel of its own.
void backward_kernel(void*, const void* operation, uint64_t keys, void* stack) {
  AttentionShim* shim = current[ATTENTION_BACKWARD].load(std::memory_order_acquire);
  auto& values = *static_cast<std::vector<StackValue>*>(stack);
  StackValue* first = values.data() + values.size() - BACKWARD_ARGUMENTS;
  auto& given = *reinterpret_cast<StackValue(*)[BACKWARD_ARGUMENTS]>(first);
  AttentionCall call = {};
  OptionalTensor mask = {};
  Tensor results[MOST_ATTENTION_RESULTS] = {};
  if (!read(given, call, mask) || !shim->attend(call, results)) {
    const KernelFunction& original = shim->original();
    return reinterpret_cast<Boxed>(original.boxed)(original.functor, operation, keys, stack);
  }
  for (StackValue& one : given) one.drop();
  for (int i = 0; i < MOST_ATTENTION_RESULTS; ++i) given[i] = StackValue::of(results[i]);
  values.resize(values.size() - BACKWARD_ARGUMENTS + MOST_ATTENTION_RESULTS);
}

bool register_forward(stable::Library library) {
  KernelFunction kernel;
  kernel.boxed = reinterpret_cast<void*>(&boxed_forward_kernel);
  kernel.unboxed = reinterpret_cast<void*>(&forward_kernel);
  return register_kernel(library, "_scaled_dot_product_flash_attention_for_cpu", kernel);
}

bool register_backward(stable::Library library) {
  KernelFunction kernel;
  kernel.boxed = reinterpret_cast<void*>(&backward_kernel);
  return register_kernel(library, "_scaled_dot_product_flash_attention_for_cpu_backward", kernel);
}

// Attention that Python is to compute.
class AttentionQuestion final : public Question {
 public:
  explicit AttentionQuestion(const AttentionCall& call) : call_(call) {}

  PyObject* arguments(const Conversions& conversions) override {
    const Tensor mask = call_.mask();
    PyObject* tensors = to_python(
        {call_.gradient, call_.q, call_.k, call_.v, call_.out, call_.logsumexp, mask}, conversions);
    if (tensors == nullptr) return nullptr;
    PyObject* scale = call_.scale.has_value() ? PyFloat_FromDouble(*call_.scale) : Py_None;
    if (!call_.scale.has_value()) Py_INCREF(scale);
    PyObject* given = scale == nullptr
                          ? nullptr
                          : Py_BuildValue("(OOOO)", tensors, mask == nullptr ? Py_False : Py_True,
                                          call_.causal ? Py_True : Py_False, scale);
    Py_XDECREF(scale);
    Py_DECREF(tensors);
    return given;
  }
  bool take(PyObject* result, const Conversions& conversions) override {
    return from_python(result, results_, call_.is_backward() ? 3 : 2, conversions);
  }
  void write(Tensor (&results)[MOST_ATTENTION_RESULTS]) const {
    for (int i = 0; i < MOST_ATTENTION_RESULTS; ++i)
      results[i] = reinterpret_cast<Tensor>(results_[i]);
  }

 private:
  const AttentionCall& call_;
  stable::Value results_[MOST_ATTENTION_RESULTS] = {};
};

}  // namespace

AttentionShim::~AttentionShim() {
  Py_XDECREF(answer_);
  Py_XDECREF(kept_);
}

bool AttentionShim::put_in() {
  stable::Library& library = libraries[pass_];
  if (library != nullptr) return false;
  if (stable::aoti_torch_library_init_impl("aten", "CPU", "bestof.torch.shim", 0, &library) != 0) {
    library = nullptr;
    return false;
  }
  AttentionShim* before = current[pass_].exchange(this, std::memory_order_acq_rel);
  if (pass_ == ATTENTION_FORWARD ? register_forward(library) : register_backward(library))
    return true;
  take_out();
  current[pass_].store(before, std::memory_order_release);
  return false;
}

void AttentionShim::take_out() {
  if (libraries[pass_] == nullptr || current[pass_].load() != this) return;
  stable::aoti_torch_delete_library_object(libraries[pass_]);
  libraries[pass_] = nullptr;
}

bool AttentionShim::attend(const AttentionCall& call, Tensor (&results)[MOST_ATTENTION_RESULTS]) {
  if (!call.is_worth(least_) || passes_through()) return false;
  Call look;
  if (!call.describe(look)) return false;
  Known* known = known_.find(look);
  if (known != nullptr && !is_sampled(*known)) {
    known->count();
    // `note` of this shim takes no other kernels.
    const auto* native =
        static_cast<const NativeAttention*>(known->native.load(std::memory_order_acquire));
    return native != nullptr && !wants_first_only() && native->run(call, results);
  }
  asked_.fetch_add(1, std::memory_order_relaxed);
  AttentionQuestion question(call);
  ask(answer_, question, &look);
  question.write(results);
  return true;
}

}  // namespace shim
