#include "product_shim.h"

#include <atomic>

#include "guards.h"
#include "python_error.h"

namespace shim {

namespace {

// The shim that was put in last. A thread may still call it after it was taken out.
std::atomic<ProductShim*> current{nullptr};
stable::Library library = nullptr;

using Product = Result (*)(void* functor, uint64_t keys, stable::Tensor a, stable::Tensor b);
using BiasedProduct = Result (*)(void* functor, uint64_t keys, stable::Tensor bias,
                                 stable::Tensor a, stable::Tensor b, const Scalar* beta,
                                 const Scalar* alpha);
using Boxed = void (*)(void* functor, const void* operation, uint64_t keys, void* stack);

template <int kOperation>
Result product_kernel(void*, uint64_t keys, stable::Tensor a, stable::Tensor b) {
  ProductCall call{kOperation, keys, nullptr, a, b, nullptr, nullptr, {}, {}};
  return current.load(std::memory_order_acquire)->multiply(call);
}

template <int kOperation>
Result biased_kernel(void*, uint64_t keys, stable::Tensor bias, stable::Tensor a, stable::Tensor b,
                     const Scalar* beta, const Scalar* alpha) {
  ProductCall call{kOperation, keys, bias, a, b, beta, alpha, {}, {}};
  return current.load(std::memory_order_acquire)->multiply(call);
}

// Boxed calls come from torch.ops and from modes that intercept operators: PyTorch answers them.
template <int kOperation>
void boxed_kernel(void*, const void* operation, uint64_t keys, void* stack) {
  const KernelFunction& original = current.load(std::memory_order_acquire)->original(kOperation);
  reinterpret_cast<Boxed>(original.boxed)(original.functor, operation, keys, stack);
}

template <int kOperation>
KernelFunction kernel_of() {
  KernelFunction kernel;
  kernel.boxed = reinterpret_cast<void*>(&boxed_kernel<kOperation>);
  if constexpr (PRODUCT_OPERATIONS[kOperation].has_bias)
    kernel.unboxed = reinterpret_cast<void*>(&biased_kernel<kOperation>);
  else
    kernel.unboxed = reinterpret_cast<void*>(&product_kernel<kOperation>);
  return kernel;
}

// A product that Python is to compute.
class ProductQuestion final : public Question {
 public:
  explicit ProductQuestion(const ProductCall& call) : call_(call) {}

  PyObject* arguments(const Conversions& conversions) override {
    PyObject* tensors = to_python({call_.bias, call_.a, call_.b}, conversions);
    PyObject* bias = call_.bias == nullptr ? Py_None : nullptr;
    PyObject* given = nullptr;
    if (tensors != nullptr) {
      const Py_ssize_t first = bias == nullptr ? 1 : 0;
      if (bias == nullptr) bias = PyList_GetItem(tensors, 0);
      given = Py_BuildValue("(iOOO)", call_.operation, bias, PyList_GetItem(tensors, first),
                            PyList_GetItem(tensors, first + 1));
    }
    Py_XDECREF(tensors);
    return given;
  }
  bool take(PyObject* result, const Conversions& conversions) override {
    return from_python(result, &result_, 1, conversions);
  }
  stable::Tensor result() const { return reinterpret_cast<stable::Tensor>(result_); }

 private:
  const ProductCall& call_;
  stable::Value result_ = 0;
};

}  // namespace

ProductShim::ProductShim(Conversions conversions, PyObject* answer, PyObject* kept,
                         const KernelFunction (&originals)[PRODUCTS], int64_t least,
                         PyObject* first_only)
    : Shim(conversions, first_only, 16384), answer_(answer), kept_(kept), least_(least) {
  for (int one = 0; one < PRODUCTS; ++one) originals_[one] = originals[one];
}

ProductShim::~ProductShim() {
  Py_XDECREF(answer_);
  Py_XDECREF(kept_);
}

bool ProductShim::put_in() {
  if (library != nullptr) return false;
  if (stable::aoti_torch_library_init_impl("aten", "CPU", "bestof.torch.shim", 0, &library) != 0) {
    library = nullptr;
    return false;
  }
  ProductShim* before = current.exchange(this, std::memory_order_acq_rel);
  const KernelFunction kernels[PRODUCTS] = {kernel_of<0>(), kernel_of<1>(), kernel_of<2>(),
                                            kernel_of<3>()};
  bool all = true;
  for (int one = 0; one < PRODUCTS; ++one)
    all = all && register_kernel(library, PRODUCT_OPERATIONS[one].name, kernels[one]);
  if (all) return true;
  take_out();
  current.store(before, std::memory_order_release);
  return false;
}

void ProductShim::take_out() {
  if (library == nullptr || current.load() != this) return;
  stable::aoti_torch_delete_library_object(library);
  library = nullptr;
}

Result ProductShim::by_pytorch(const ProductCall& call) const {
  const KernelFunction& own = originals_[call.operation];
  if (call.bias == nullptr)
    return reinterpret_cast<Product>(own.unboxed)(own.functor, call.keys, call.a, call.b);
  return reinterpret_cast<BiasedProduct>(own.unboxed)(own.functor, call.keys, call.bias, call.a,
                                                      call.b, call.beta, call.alpha);
}

Result ProductShim::multiply(ProductCall& call) {
  if (!call.read(least_) || passes_through()) return by_pytorch(call);
  Call look;
  call.describe(look, level_.load(std::memory_order_relaxed));
  Known* known = known_.meet(look);
  bool is_refused = false;
  if (known == nullptr) return by_pytorch(call);  // the table is full of other looks
  if (known->generation.load(std::memory_order_acquire) != generation()) {
    if (known->met.load(std::memory_order_relaxed) < UNTIL_ASKED) {
      known->met.fetch_add(1, std::memory_order_relaxed);
      return by_pytorch(call);
    }
  } else if (!is_sampled(*known)) {
    known->count();
    // `note` of this shim takes no other kernels.
    const auto* native =
        static_cast<const NativeProduct*>(known->native.load(std::memory_order_acquire));
    if (native == nullptr || wants_first_only()) return by_pytorch(call);
    stable::Tensor output = nullptr;
    if (compute(*native, call, &output)) return Result(output);
    if (!native->reads_packed()) return by_pytorch(call);
    is_refused = true;  // Python packs B
  }
  asked_.fetch_add(1, std::memory_order_relaxed);
  ProductQuestion question(call);
  ask(answer_, question, &look, is_refused);
  return Result(question.result());
}

}  // namespace shim
