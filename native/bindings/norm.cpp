// Layer norm and RMS norm for Python and for plans.
#include "norm/norm.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <omp.h>

#include <string>

#include "bindings/array.h"
#include "bindings/execute.h"
#include "bindings/module.h"
#include "bindings/problem.h"
#include "bindings/runnable.h"

namespace bestof {
namespace {

// Adds an array that may be left out to the operands; None has no address.
const void* row_of(nb::handle value, const char* name, long size, const Array& out, Array& keep) {
  if (value.is_none()) return nullptr;
  keep = read_array(value, name, 1, out.element);
  expect_shape(keep, name, {size});
  expect_apart(out, "out", keep, name);
  return keep.data;
}

void normalize(nb::handle x, nb::handle residual, nb::handle scale, nb::handle shift,
               nb::handle out, double epsilon, bool centred, const std::string& dtype,
               int threads) {
  const Element element = element_of(dtype);
  const Array from = read_array(x, "x", kAnyRank, element);
  const Array into = write_array(out, "out", kAnyRank, element);
  if (from.shape.empty() || from.shape.back() < 1)
    refuse("x: expected rows of at least one number; got shape " + describe(from.shape));
  expect_shape(into, "out", from.shape);
  const long size = from.shape.back();
  if (into.data != from.data) expect_apart(into, "out", from, "x");
  NormCall call = {};
  Array added, scales, shifts;
  if (!residual.is_none()) {
    added = read_array(residual, "residual", kAnyRank, element);
    expect_shape(added, "residual", from.shape);
    if (into.data != added.data) expect_apart(into, "out", added, "residual");
    call.residual = added.data;
  }
  call.x = from.data;
  call.scale = row_of(scale, "scale", size, into, scales);
  call.shift = row_of(shift, "shift", size, into, shifts);
  call.y = into.data;
  call.threads = threads_of(threads);
  const NormProblem p = {from.count() / size, size, epsilon, centred, element};
  nb::gil_scoped_release release;
  kernels().normalize(p, call);
}

}  // namespace

void bind_norm(nb::module_& m) {
  m.def("normalize", &normalize, nb::arg("x"), nb::arg("residual").none(), nb::arg("scale").none(),
        nb::arg("shift").none(), nb::arg("out"), nb::arg("epsilon"), nb::arg("centred"),
        nb::arg("dtype"), nb::arg("threads"));
  // x, residual, scale, shift -> out.
  m.def("norm", [](long rows, long size, double epsilon, bool centred, const std::string& dtype) {
    const NormProblem p = {rows, size, epsilon, centred, element_of(dtype)};
    return runnable([p](auto operands, auto results) {
      kernels().normalize(p, {operands[0], operands[1], operands[2], operands[3], results[0],
                              omp_get_max_threads()});
      return true;
    });
  });
}

}  // namespace bestof
