#include "rehearsal.h"

#include <nanobind/stl/shared_ptr.h>

#include <memory>
#include <vector>

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

nb::object in_capsule(stable::Tensor result) {
  return result == nullptr ? nb::none() : nb::steal(PyCapsule_New(result, nullptr, nullptr));
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
  stable::Tensor result = nullptr;
  if (call.read(0)) {
    const nb::gil_scoped_release release;
    if (!shim.compute(native, call, &result)) result = nullptr;
  }
  return in_capsule(result);
}

// `capsules` are an input, a weight and perhaps a bias. Returns a handle of the output, or None if
// the kernel refuses.
nb::object compute_convolution(ConvolutionShim& shim, const NativeConvolution& native,
                               nb::list capsules) {
  const Handles tensors(capsules);
  const stable::Tensor bias = tensors.count() > 2 ? tensors[2] : nullptr;
  stable::Tensor result = nullptr;
  {
    const nb::gil_scoped_release release;
    if (!shim.compute(native, tensors[0], tensors[1], bias == nullptr ? nullptr : &bias, &result))
      result = nullptr;
  }
  return in_capsule(result);
}

}  // namespace

void bind_rehearsal(nb::module_& module) {
  module.def("compute_product", &compute_product);
  module.def("compute_convolution", &compute_convolution);
}

}  // namespace shim
