#include "rehearsal.h"

#include <nanobind/stl/shared_ptr.h>

#include <memory>
#include <vector>

#include "attention_shim.h"
#include "convolution_shim.h"
#include "product_shim.h"

namespace nb = nanobind;

namespace shim {

namespace {

// The tensors of capsules that unsafe_alloc_void_ptr_from_tensor made.
class Handles {
 public:
  explicit Handles(nb::list capsules) {
    for (nb::handle one : capsules) {
      void* handle = PyCapsule_GetPointer(one.ptr(), PyCapsule_GetName(one.ptr()));
      if (handle == nullptr) throw nb::python_error();
      handles_.push_back(static_cast<stable::Tensor>(handle));
    }
  }
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
  ~Handles() {
    for (const stable::Tensor one : handles_) stable::aoti_torch_delete_tensor_object(one);
  }
  std::size_t count() const { return handles_.size(); }
  stable::Tensor operator[](std::size_t place) const { return handles_[place]; }

 private:
  std::vector<stable::Tensor> handles_;
};

// Returns a list of capsules of the handles that are there; None if there is no first one.
template <int kCount>
nb::object in_capsules(const stable::Tensor (&results)[kCount]) {
  if (results[0] == nullptr) return nb::none();
  nb::list capsules;
  for (const stable::Tensor one : results) {
    if (one != nullptr) capsules.append(nb::steal(PyCapsule_New(one, nullptr, nullptr)));
  }
  return capsules;
}

// `capsules` are a bias, if the operation has one, A and B. Returns a handle of C, or None if the
// kernel refuses.
nb::object compute_product(ProductShim& shim, const NativeProduct& native, int operation,
                           nb::list capsules) {
  const Handles tensors(capsules);
  const std::size_t first = tensors.count() - 2;
  const Scalar one = Scalar::one();
  ProductCall call{operation,
                   0,
                   first == 0 ? nullptr : tensors[0],
                   tensors[first],
                   tensors[first + 1],
                   &one,
                   &one,
                   {},
                   {}};
  stable::Tensor result[1] = {};
  if (call.read(0)) {
    const nb::gil_scoped_release release;
    if (!shim.compute(native, call, result)) result[0] = nullptr;
  }
  return in_capsules(result);
}

// `capsules` are an input, a weight and perhaps a bias. Returns a handle of the output, or None if
// the kernel refuses.
nb::object compute_convolution(ConvolutionShim& shim, const NativeConvolution& native,
                               nb::list capsules) {
  const Handles tensors(capsules);
  const stable::Tensor bias = tensors.count() > 2 ? tensors[2] : nullptr;
  stable::Tensor result[1] = {};
  {
    const nb::gil_scoped_release release;
    if (!shim.compute(native, tensors[0], tensors[1], bias == nullptr ? nullptr : &bias, result))
      result[0] = nullptr;
  }
  return in_capsules(result);
}

// `capsules` are the tensors of a pass, as of AttentionShim, and perhaps a mask. Returns handles of
// the results, or None if the kernel refuses. The scale is in the kernel's plan.
nb::object compute_attention(const NativeAttention& native, nb::list capsules) {
  const Handles tensors(capsules);
  const std::size_t count = tensors.count();
  const bool is_backward = count >= 6;
  const std::size_t q = is_backward ? 1 : 0;
  OptionalTensor mask = {nullptr, count == 4 || count == 7};
  if (mask.is_there) mask.tensor = *reinterpret_cast<void**>(tensors[count - 1]);
  AttentionCall call = {0, tensors[q], tensors[q + 1], tensors[q + 2], 0.0, false, &mask, {}};
  if (is_backward) {
    call.gradient = tensors[0];
    call.out = tensors[4];
    call.logsumexp = tensors[5];
  }
  stable::Tensor results[MOST_ATTENTION_RESULTS] = {};
  {
    const nb::gil_scoped_release release;
    if (!native.run(call, results)) results[0] = nullptr;
  }
  return in_capsules(results);
}

}  // namespace

void bind_rehearsal(nb::module_& module) {
  module.def("compute_product", &compute_product);
  module.def("compute_attention", &compute_attention);
  module.def("compute_convolution", &compute_convolution);
}

}  // namespace shim
