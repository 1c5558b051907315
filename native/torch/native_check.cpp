#include "native_check.h"

#include <nanobind/stl/shared_ptr.h>

#include "operator_call.h"
#include "shim.h"

namespace nb = nanobind;

namespace shim {

namespace {

// The tensors of capsules that unsafe_alloc_void_ptr_from_tensor made; null for None.
class Handles {
 public:
  explicit Handles(nb::list capsules) {
    if (capsules.size() > OperatorCall::MOST_OPERANDS) throw nb::value_error("too many operands");
    for (nb::handle one : capsules) {
      void* handle = nullptr;
      if (!one.is_none()) {
        handle = PyCapsule_GetPointer(one.ptr(), PyCapsule_GetName(one.ptr()));
        if (handle == nullptr) throw nb::python_error();
      }
      handles_[count_++] = static_cast<stable::Tensor>(handle);
    }
  }
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
  ~Handles() {
    for (int place = 0; place < count_; ++place) {
      if (handles_[place] != nullptr) stable::aoti_torch_delete_tensor_object(handles_[place]);
    }
  }
  const stable::Tensor* tensors() const { return handles_; }

 private:
  stable::Tensor handles_[OperatorCall::MOST_OPERANDS] = {};
  int count_ = 0;
};

// `capsules` are the operands of a call, None where one is absent. Returns handles of the results,
// or None if the kernel refuses.
nb::object compute(Shim& shim, const Native& native, nb::list capsules) {
  const Handles operands(capsules);
  stable::Tensor results[OperatorCall::MOST_RESULTS] = {};
  bool is_done = false;
  {
    const nb::gil_scoped_release release;
    is_done = shim.compute(native, operands.tensors(), results);
  }
  if (!is_done) return nb::none();
  nb::list handles;
  for (const stable::Tensor one : results) {
    if (one != nullptr) handles.append(nb::steal(PyCapsule_New(one, nullptr, nullptr)));
  }
  return handles;
}

}  // namespace

void bind_native_check(nb::module_& module) {
  module.def("compute", &compute);
}

}  // namespace shim
