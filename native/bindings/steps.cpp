// The steps of a plan, one after the other, on one team of threads.
#include <nanobind/nanobind.h>
#include <omp.h>

#include <string>

#include "bindings/module.h"
#include "bindings/problem.h"
#include "team/team.h"

namespace nb = nanobind;

namespace bestof {
namespace {

// place: of the next function.
struct Steps {
  PyObject* functions;
  Py_ssize_t place;
  bool failed;
};

void run_all(void* given) {
  auto& steps = *static_cast<Steps*>(given);
  while (steps.place < PyList_GET_SIZE(steps.functions)) {
    PyObject* function = PyList_GET_ITEM(steps.functions, steps.place);
    Py_INCREF(function);  // it may change the list
    PyObject* result = PyObject_CallNoArgs(function);
    Py_DECREF(function);
    steps.failed = !result;
    if (steps.failed) return;
    const bool ends = result == Py_False;
    Py_DECREF(result);
    if (ends) return;
    ++steps.place;
  }
}

// Calls functions, which run native kernels, by the calling thread, from that at `begin` on. It
// holds Python's lock, which other threads of the team do not need. An exception ends it, and a
// function that returns False. Returns the place of that function, or how many there are.
Py_ssize_t run_steps(const nb::list& functions, Py_ssize_t begin) {
  if (begin < 0) refuse("begin: expected 0 or more; got " + std::to_string(begin));
  Steps steps = {functions.ptr(), begin, false};
  with_team(omp_get_max_threads(), run_all, &steps);
  if (steps.failed) throw nb::python_error();
  return steps.place;
}

}  // namespace

void bind_steps(nb::module_& m) {
  m.def("run_steps", &run_steps);
}

}  // namespace bestof
