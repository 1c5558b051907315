#include "transpose/transpose.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <array>
#include <string>

#include "bindings/array.h"
#include "bindings/module.h"

namespace bestof {
namespace {

LoopOrder loop_order(const std::string& algorithm) {
  if (algorithm == "read-contiguous") return LoopOrder::kReadContiguous;
  if (algorithm == "write-contiguous") return LoopOrder::kWriteContiguous;
  refuse("algorithm: expected read-contiguous or write-contiguous; got " + algorithm);
}

void transpose(nb::handle x, std::array<int, 4> axes, nb::handle out, const std::string& algorithm) {
  const LoopOrder order = loop_order(algorithm);
  const Array from = read_array(x, "x", 4);
  const Array to = write_array(out, "out", 4);
  bool seen[4] = {false, false, false, false};
  std::vector<long> shape;
  for (int axis : axes) {
    if (axis < 0 || axis > 3 || seen[axis]) refuse("axes: expected a permutation of 0, 1, 2, 3");
    seen[axis] = true;
    shape.push_back(from.shape[axis]);
  }
  expect_shape(to, "out", shape);
  expect_apart(to, "out", from, "x");
  std::size_t extents[4];
  for (int i = 0; i < 4; ++i) extents[i] = from.shape[i];
  nb::gil_scoped_release release;
  transpose4d(from.data, extents, axes.data(), order, to.data);
}

}  // namespace

void bind_transpose(nb::module_& m) {
  m.def("transpose", &transpose, nb::arg("x"), nb::arg("axes"), nb::arg("out"), nb::arg("algorithm"));
}

}  // namespace bestof
