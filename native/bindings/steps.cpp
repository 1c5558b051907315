// The steps of a plan, one after the other, on one team of threads.
#include <nanobind/nanobind.h>
#include <omp.h>

#include "bindings/module.h"
#include "team/team.h"

namespace nb = nanobind;

namespace bestof {
namespace {

struct Steps {
  PyObject* functions;
  bool failed;
};

void run_all(void* given) {
  auto& steps = *static_cast<Steps*>(given);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(steps.functions); ++i) {
    PyObject* function = PyList_GET_ITEM(steps.functions, i);
    Py_INCREF(function);  // it may change the list
    PyObject* result = PyObject_CallNoArgs(function);
    Py_DECREF(function);
    steps.failed = !result;
    if (steps.failed) return;
    Py_DECREF(result);
  }
}

// Calls functions, which run native kernels, by the calling thread. It holds Python's lock, which
// other threads of the team do not need. An exception ends it.
void run_steps(const nb::list& functions) {
  Steps steps = {functions.ptr(), false};
  with_team(omp_get_max_threads(), run_all, &steps);
  if (steps.failed) throw nb::python_error();
}

}  // namespace

void bind_steps(nb::module_& m) {
  m.def("run_steps", &run_steps);
}

}  // namespace bestof
