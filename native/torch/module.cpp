// The Python module bestof.torch._shim; _shim.pyi says what is in it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "attention_shim.h"
#include "convolution_shim.h"
#include "cpp_kernel.h"
#include "gradients.h"
#include "guards.h"
#include "memory_sample.h"
#include "native_product.h"
#include "product_shim.h"
#include "rehearsal.h"
#include "tensor_version.h"
#include "watch.h"

namespace nb = nanobind;

namespace {

PyObject* owned(nb::handle object) {
  return object.inc_ref().ptr();
}

void make_convolutions(shim::ConvolutionShim* shim, nb::callable to_tensors, nb::callable to_handle,
                       nb::callable forward, nb::callable backward, nb::dict kept,
                       nb::list first_only) {
  new (shim) shim::ConvolutionShim({owned(to_tensors), owned(to_handle)}, owned(forward),
                                   owned(backward), owned(kept), owned(first_only));
}

// Returns whether every one of these kernels can be read and called.
bool reads_kernels(nb::list kernels, shim::KernelFunction (&read)[shim::PRODUCTS]) {
  if (kernels.size() != shim::PRODUCTS) return false;
  for (int one = 0; one < shim::PRODUCTS; ++one) {
    if (!shim::read_kernel(nb::object(kernels[one]).ptr(), &read[one])) return false;
  }
  return true;
}

// `kernels` are objects of torch.library.get_kernel, in the order of PRODUCTS. Returns None if they
// cannot be called from here.
std::unique_ptr<shim::ProductShim> make_products(nb::callable to_tensors, nb::callable to_handle,
                                                 nb::callable answer, nb::list kernels,
                                                 int64_t least, nb::list first_only) {
  shim::KernelFunction originals[shim::PRODUCTS];
  if (!reads_kernels(kernels, originals)) return nullptr;
  return std::make_unique<shim::ProductShim>(shim::Conversions{owned(to_tensors), owned(to_handle)},
                                             owned(answer), owned(kernels), originals, least,
                                             owned(first_only));
}

// `kernel` is an object of torch.library.get_kernel. Returns None if it cannot be called from here.
std::unique_ptr<shim::AttentionShim> make_attention(bool is_backward, nb::callable to_tensors,
                                                    nb::callable to_handle, nb::callable answer,
                                                    nb::object kernel, int64_t least,
                                                    nb::list first_only) {
  shim::KernelFunction original;
  if (!shim::read_kernel(kernel.ptr(), &original)) return nullptr;
  return std::make_unique<shim::AttentionShim>(
      is_backward ? shim::ATTENTION_BACKWARD : shim::ATTENTION_FORWARD,
      shim::Conversions{owned(to_tensors), owned(to_handle)}, owned(answer), owned(kernel),
      original, least, owned(first_only));
}

nb::tuple product_names() {
  nb::list names;
  for (const shim::ProductOperation& one : shim::PRODUCT_OPERATIONS) names.append(one.name);
  return nb::tuple(names);
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

std::shared_ptr<shim::NativeConvolution> make_native(nb::object owner, std::size_t kernels,
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

// `results` are sizes, strides, and whether they are of bfloat16.
std::shared_ptr<shim::NativeAttention> make_native_attention(
    nb::object owner, std::size_t kernels, std::size_t plan,
    const std::vector<std::tuple<Sizes, Sizes, bool>>& results) {
  std::vector<shim::Form> forms;
  for (const auto& [sizes, strides, halves] : results)
    forms.push_back({sizes, strides, halves ? stable::BFLOAT16 : stable::FLOAT32});
  return std::make_shared<shim::NativeAttention>(
      owner.ptr(), static_cast<const bestof::CCalls*>(at(kernels)), at(plan), std::move(forms));
}

template <typename Kernel>
bool note(shim::Shim& shim, uint64_t generation, std::vector<std::shared_ptr<shim::Count>> counts,
          std::shared_ptr<Kernel> native) {
  return shim.note(generation, std::move(counts), std::move(native));
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
  module.def("find_tensor_version", &shim::find_tensor_version);
  module.def("find_gradients", &shim::find_gradients);
  module.def("find_onednn", &shim::find_onednn);
  module.def("find_registration", &shim::find_registration);
  module.attr("PRODUCTS") = product_names();
  nb::class_<shim::Count>(module, "Count")
      .def(nb::new_([] { return std::make_shared<shim::Count>(); }))
      .def("__next__", [](shim::Count& count) { ++count.calls; })
      .def_prop_ro("calls", [](const shim::Count& count) { return count.calls.load(); });
  nb::class_<shim::NativeConvolution>(module, "NativeConvolution").def(nb::new_(&make_native));
  nb::class_<shim::NativeAttention>(module, "NativeAttention")
      .def(nb::new_(&make_native_attention));
  nb::class_<shim::NativeProduct>(module, "NativeProduct");
  module.def("onednn_product", []() -> std::shared_ptr<shim::NativeProduct> {
    return std::make_shared<shim::OneDnnProduct>();
  });
  module.def("planned_product",
             [](nb::object plan, std::size_t kernels, std::size_t address,
                uint64_t key) -> std::shared_ptr<shim::NativeProduct> {
               return std::make_shared<shim::PlannedProduct>(
                   plan.ptr(), static_cast<const bestof::CCalls*>(at(kernels)), at(address), key);
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
      .def("put_in", &shim::Shim::put_in)
      .def("take_out", &shim::Shim::take_out)
      .def("set_level", &shim::Shim::set_level)
      .def("forget", &shim::Shim::forget)
      .def("lend", &lend, nb::keep_alive<0, 1>())
      .def_prop_ro("refused", [](const shim::Shim&) { return shim::Shim::is_refused(); })
      .def_prop_ro("generation", &shim::Shim::generation);
  // Each takes its own native kernels.
  nb::class_<shim::ConvolutionShim, shim::Shim>(module, "ConvolutionShim")
      .def("__init__", make_convolutions)
      .def("note", &note<shim::NativeConvolution>, nb::arg(), nb::arg(), nb::arg().none());
  nb::class_<shim::ProductShim, shim::Shim>(module, "ProductShim")
      .def("note", &note<shim::NativeProduct>, nb::arg(), nb::arg(), nb::arg().none())
      .def_prop_ro("asked", &shim::ProductShim::asked);
  nb::class_<shim::AttentionShim, shim::Shim>(module, "AttentionShim")
      .def("note", &note<shim::NativeAttention>, nb::arg(), nb::arg(), nb::arg().none())
      .def_prop_ro("asked", &shim::AttentionShim::asked);
  module.def("make_attention_shim", &make_attention);
  module.def("make_product_shim", &make_products);
  shim::bind_rehearsal(module);
}
