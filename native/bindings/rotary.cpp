// Rotary position embedding for Python.
#include "rotary/rotary.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <omp.h>

#include <string>
#include <vector>

#include "bindings/array.h"
#include "bindings/attention.h"
#include "bindings/execute.h"
#include "bindings/module.h"
#include "bindings/problem.h"
#include "bindings/runnable.h"

namespace bestof {
namespace {

// The strides with which a table is read for x. It has all numbers of a token.
HeadStrides table_strides(const Array& table, const char* name, const Array& x) {
  if (table.shape.empty() || table.shape.back() != x.shape[3]) {
    refuse(std::string(name) + ": expected a shape that broadcasts to " + describe(x.shape) +
           ", with all numbers of a token; got " + describe(table.shape));
  }
  expect_side_by_side(table, name);
  const MaskStrides by = broadcast(table, name, x.shape);
  return {by.batch, by.head, by.query};
}

RotaryProblem make_rotary(const Array& x, const Array& cos, const Array& sin, Element element) {
  if (x.shape.size() != 4 || x.shape[3] % 2 != 0) {
    refuse("x: expected shape (batch, heads, tokens, size) with an even size; got " +
           describe(x.shape));
  }
  expect_side_by_side(x, "x");
  return {x.shape[0],
          x.shape[1],
          x.shape[2],
          x.shape[3],
          strides_of(x),
          table_strides(cos, "cos", x),
          table_strides(sin, "sin", x),
          element};
}

void rotary(nb::handle x, nb::handle cos, nb::handle sin, nb::handle out, const std::string& dtype,
            int threads) {
  const Element element = element_of(dtype);
  const Array from = read_strided(x, "x", element), c = read_strided(cos, "cos", element);
  const Array s = read_strided(sin, "sin", element);
  const RotaryProblem p = make_rotary(from, c, s, element);
  const Array into = write_array(out, "out", 4, element);
  expect_shape(into, "out", from.shape);
  expect_apart(into, "out", from, "x");
  expect_apart(into, "out", c, "cos");
  expect_apart(into, "out", s, "sin");
  const RotaryCall call = {from.data, c.data, s.data, into.data, threads_of(threads)};
  nb::gil_scoped_release release;
  kernels().rotate(p, call);
}

}  // namespace

void bind_rotary(nb::module_& m) {
  // x, cos, sin -> out. Shapes and strides are checked once.
  m.def("rotary_plan", [](const std::vector<Shape>& shapes, const std::vector<Shape>& strides,
                          const std::string& dtype, int threads) {
    const char* names[] = {"x", "cos", "sin"};
    Array arrays[3];
    for (int i = 0; i < 3; ++i) arrays[i] = described(shapes[i], strides[i], names[i]);
    const RotaryProblem p = make_rotary(arrays[0], arrays[1], arrays[2], element_of(dtype));
    return runnable([p, threads](auto operands, auto results) {
      const int team = threads > 0 ? threads : omp_get_max_threads();
      kernels().rotate(p, {operands[0], operands[1], operands[2], results[0], team});
      return true;
    });
  });
  m.def("rotary", &rotary);
}

}  // namespace bestof
