// The Python module bestof.torch._shim; _shim.pyi says what is in it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "shim.h"

namespace nb = nanobind;

namespace {

PyObject* owned(nb::handle object) {
  return object.inc_ref().ptr();
}

void make(shim::Shim* shim, nb::callable to_tensors, nb::callable to_handle, nb::callable forward,
          nb::callable backward, nb::dict kept) {
  new (shim) shim::Shim({owned(to_tensors), owned(to_handle)}, owned(forward), owned(backward), owned(kept));
}

}  // namespace

NB_MODULE(_shim, module) {
  nb::set_leak_warnings(false);  // a shim and who answers for it hold each other, as long as the process lasts
  module.attr("ASKED_EVERY") = shim::ASKED_EVERY;
  module.def("find", &stable::find);
  nb::class_<shim::Count>(module, "Count")
      .def(nb::new_([] { return std::make_shared<shim::Count>(); }))
      .def("__next__", [](shim::Count& count) { ++count.calls; })
      .def_prop_ro("calls", [](const shim::Count& count) { return count.calls.load(); });
  nb::class_<shim::Shim>(module, "Shim")
      .def("__init__", make)
      .def("put_in", &shim::Shim::put_in)
      .def("take_out", &shim::Shim::take_out)
      .def("set_level", &shim::Shim::set_level)
      .def("forget", &shim::Shim::forget)
      .def("note", &shim::Shim::note)
      .def_prop_ro("generation", &shim::Shim::generation);
}
