// The Python module bestof.torch.backends._shim; _shim.pyi says what is in it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "cpp_kernel.h"
#include "gradients.h"
#include "guards.h"
#include "memory_sample.h"
#include "native_check.h"
#include "native_convolution.h"
#include "native_plan.h"
#include "onednn_product.h"
#include "operator_shim.h"
#include "tensor_version.h"
#include "watch.h"

namespace nb = nanobind;

namespace {

PyObject* owned(nb::handle object) {
  return object.inc_ref().ptr();
}

// `operators` are names without `aten::`, with the kinds of their arguments and the number of their
// results. `kernels` are objects of torch.library.get_kernel in the same order. Returns None if the
// kernels cannot be called from here.
std::unique_ptr<shim::OperatorShim> make_operators(
    nb::callable to_tensors, nb::callable to_handle, nb::callable answer,
    const std::vector<std::tuple<std::string, std::string, int>>& operators, nb::list kernels,
    const std::string& rule, double least, nb::dict waiting, nb::list first_only) {
  const shim::Rule* found = shim::find_rule(rule.c_str());
  if (found == nullptr || kernels.size() != operators.size())
    throw nb::value_error("expected the name of a rule, and a kernel for each operator");
  std::vector<shim::Operator> entries;
  std::vector<shim::KernelFunction> originals;
  for (std::size_t place = 0; place < operators.size(); ++place) {
    const auto& [name, kinds, results] = operators[place];
    shim::KernelFunction original;
    if (!shim::read_kernel(nb::object(kernels[place]).ptr(), &original) ||
        (shim::is_typed(name) && original.unboxed == nullptr))
      return nullptr;
    entries.push_back({name, kinds, results});
    originals.push_back(original);
  }
  return std::make_unique<shim::OperatorShim>(
      shim::Conversions{owned(to_tensors), owned(to_handle)}, owned(answer), owned(kernels),
      std::move(entries), std::move(originals), *found, least, owned(waiting), owned(first_only));
}

// Returns the name of each guard, with whether it is up in this thread.
nb::dict guards() {
  nb::dict found;
  for (const shim::Guard& one : shim::GUARDS) found[one.name] = one.is_up();
  return found;
}

const void* at(std::size_t address) {
  return reinterpret_cast<const void*>(address);
}

std::shared_ptr<shim::Native> make_native_convolution(nb::object owner, std::size_t kernels,
                                                      std::size_t plan,
                                                      const std::array<int64_t, 4>& x,
                                                      const std::array<int64_t, 4>& w,
                                                      const std::array<int64_t, 2>& y,
                                                      bool channels_last, uint64_t key) {
  const shim::ConvolutionShape shape = {x[0], x[1], x[2], x[3], w[0], w[1], w[2], w[3], y[0], y[1]};
  return std::make_shared<shim::NativeConvolution>(owner.ptr(),
                                                   static_cast<const bestof::CCalls*>(at(kernels)),
                                                   at(plan), shape, channels_last, key);
}

using Sizes = std::vector<int64_t>;

// `results` are sizes, strides and dtypes, by PyTorch's numbers. `packed` is the place of the
// operand that the plan reads packed, the key that it is lent by, 0 for none, and its elements.
std::shared_ptr<shim::Native> make_native_plan(
    nb::object owner, std::size_t kernels, std::size_t plan, int operands,
    const std::vector<std::tuple<Sizes, Sizes, int32_t>>& results,
    const std::tuple<int, uint64_t, int64_t>& packed) {
  std::vector<shim::Form> forms;
  for (const auto& [sizes, strides, dtype] : results) forms.push_back({sizes, strides, dtype});
  const auto [place, key, elements] = packed;
  return std::make_shared<shim::NativePlan>(
      owner.ptr(), static_cast<const bestof::CCalls*>(at(kernels)), at(plan), operands,
      std::move(forms), shim::PackedOperand{place, key, elements});
}

// Runs a kernel on memory at addresses, 0 for an absent operand, without Python's lock. Returns
// false if the kernel refuses.
bool write_results(const shim::Native& native, const std::vector<std::size_t>& operands,
                   const std::vector<std::size_t>& results) {
  std::vector<const void*> read;
  std::vector<void*> written;
  for (const std::size_t one : operands) read.push_back(at(one));
  for (const std::size_t one : results) written.push_back(const_cast<void*>(at(one)));
  const nb::gil_scoped_release release;
  return native.write(read.data(), static_cast<int>(read.size()), written.data(),
                      static_cast<int>(written.size()));
}

// Ends with the Python object that has it.
struct Loan {
  shim::Lent* lent;

  explicit Loan(shim::Lent* lent) : lent(lent) {}
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
  ~Loan() { lent->end(); }
};

std::unique_ptr<Loan> lend(shim::Shim& shim, nb::object packed, std::size_t packed_address,
                           std::size_t address, uint64_t key, int64_t version,
                           uint64_t fingerprint) {
  shim::Lent* lent =
      shim.lend({at(address), key, version, at(packed_address), packed.ptr(), fingerprint});
  return lent == nullptr ? nullptr : std::make_unique<Loan>(lent);
}

// `places` are pairs of a dict and the name that it has the tensor by, or None; `children` are such
// dicts with a name and what it stands for; `sized` are dicts, and `classed` any objects. `bytes`
// are those of each tensor's memory, 0 if they are not dense. The handles are deleted.
std::unique_ptr<shim::Watch> make_watch(nb::list tensors, nb::list places, nb::list handles,
                                        const std::vector<std::size_t>& bytes, nb::list children,
                                        nb::list sized, nb::list classed) {
  auto watch = std::make_unique<shim::Watch>();
  bool all = true;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    PyObject *dict = nullptr, *name = nullptr;
    if (nb::object place = places[i]; !place.is_none()) {  // borrowed: the lists hold them
      dict = nb::object(place[0]).ptr();
      name = nb::object(place[1]).ptr();
    }
    const nb::object tensor = tensors[i], capsule = handles[i];
    void* handle = PyCapsule_GetPointer(capsule.ptr(), PyCapsule_GetName(capsule.ptr()));
    if (handle == nullptr) throw nb::python_error();
    all = watch->add(dict, name, tensor.ptr(), static_cast<stable::Tensor>(handle), bytes.at(i)) &&
          all;
    stable::aoti_torch_delete_tensor_object(static_cast<stable::Tensor>(handle));
  }
  for (nb::handle child : children) {
    const nb::object dict = child[0], name = child[1], object = child[2];
    if (!PyDict_Check(dict.ptr())) throw nb::type_error("the children of a module are no dict");
    watch->add_child(dict.ptr(), name.ptr(), object.ptr());
  }
  for (nb::handle dict : sized) {
    if (!PyDict_Check(dict.ptr())) throw nb::type_error("what must keep its size is no dict");
    watch->add_sized(dict.ptr());
  }
  for (nb::handle object : classed) watch->add_classed(object.ptr());
  return all ? std::move(watch) : nullptr;
}

int traverse_watch(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<shim::Watch>(self)->traverse(visit, arg) : 0;
}

int clear_watch(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<shim::Watch>(self)->clear();
  return 0;
}

PyType_Slot kWatchSlots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(traverse_watch)},
    {Py_tp_clear, reinterpret_cast<void*>(clear_watch)},
    {0, nullptr},
};

}  // namespace

NB_MODULE(_shim, module) {
  nb::set_leak_warnings(
      false);  // a shim and who answers for it hold each other, as long as the process lasts
  module.attr("ASKED_EVERY") = shim::ASKED_EVERY;
  module.def("find", &stable::find);
  module.def("find_guards", &shim::find_guards);
  module.def("guards", &guards);
  module.def("is_skipped", &shim::is_skipped);
  module.def("enter_skipped", &shim::enter_skipped);
  module.def("leave_skipped", &shim::leave_skipped);
  module.def("forget_skipped", &shim::forget_skipped);
  module.def("find_tensor_version", &shim::find_tensor_version);
  module.def("find_gradients", &shim::find_gradients);
  module.def("find_onednn", &shim::find_onednn);
  module.def("find_registration", &shim::find_registration);
  nb::class_<shim::Count>(module, "Count")
      .def(nb::new_([] { return std::make_shared<shim::Count>(); }))
      .def("__next__", [](shim::Count& count) { ++count.calls; })
      .def_prop_ro("calls", [](const shim::Count& count) { return count.calls.load(); });
  nb::class_<shim::Native>(module, "Native")
      .def_prop_ro("packed",
                   [](const shim::Native& native) {
                     const int place = native.packed();
                     return place == shim::Native::NONE ? nb::object(nb::none())
                                                        : nb::object(nb::int_(place));
                   })
      .def("write", &write_results);
  module.def("native_convolution", &make_native_convolution);
  module.def("native_plan", &make_native_plan);
  module.def("onednn_product", []() -> std::shared_ptr<shim::Native> {
    return std::make_shared<shim::OneDnnProduct>();
  });
  nb::class_<Loan>(module, "Loan");
  nb::class_<shim::Watch>(module, "Watch", nb::type_slots(kWatchSlots))
      .def("is_unchanged", &shim::Watch::is_unchanged);
  module.def("make_watch", &make_watch);
  module.def("memory_sample", [](std::size_t address, std::size_t bytes) {
    const shim::MemorySample sample(at(address), bytes);
    return nb::bytes(static_cast<const char*>(sample.lines()), 2 * shim::MemorySample::LINE);
  });
  nb::class_<shim::Shim>(module, "Shim")
      .def(
          "put_in",
          [](shim::Shim& shim, const std::string& key) { return shim.put_in(key.c_str()); },
          nb::arg("key") = "CPU")
      .def("take_out", &shim::Shim::take_out)
      .def("set_level", &shim::Shim::set_level)
      .def("forget", &shim::Shim::forget)
      .def("lend", &lend, nb::keep_alive<0, 1>())
      .def_prop_ro("refused", [](const shim::Shim&) { return shim::Shim::is_refused(); })
      .def("note", &shim::Shim::note, nb::arg(), nb::arg(), nb::arg().none())
      .def_prop_ro("generation", &shim::Shim::generation);
  nb::class_<shim::OperatorShim, shim::Shim>(module, "OperatorShim")
      .def_prop_ro("asked", &shim::OperatorShim::asked);
  module.def("make_operator_shim", &make_operators);
  shim::bind_native_check(module);
}
