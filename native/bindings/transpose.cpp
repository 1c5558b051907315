#include "transpose/transpose.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <omp.h>

#include <array>
#include <string>

#include "bindings/array.h"
#include "bindings/module.h"

namespace bestof {
namespace {

// Returns the axes in the order of y: those of extent 1 dropped, neighbours on both sides joined.
JoinedAxes join_axes(const std::vector<long>& x, const std::array<int, 4>& axes) {
  long stride[4] = {x[1] * x[2] * x[3], x[2] * x[3], x[3], 1};
  JoinedAxes joined = {};
  for (int axis : axes) {
    if (x[axis] == 1) continue;
    const int last = joined.count - 1;
    if (last >= 0 && joined.read[last] == stride[axis] * x[axis]) {
      joined.extent[last] *= x[axis];
      joined.read[last] = stride[axis];
    } else {
      joined.extent[joined.count] = x[axis];
      joined.read[joined.count++] = stride[axis];
    }
  }
  if (joined.count == 0) {
    joined.extent[0] = 1;
    joined.read[0] = 1;
    joined.count = 1;
  }
  long write = 1;
  for (int i = joined.count - 1; i >= 0; --i) {
    joined.write[i] = write;
    write *= joined.extent[i];
  }
  return joined;
}

void transpose(nb::handle x, std::array<int, 4> axes, nb::handle out,
               const std::string& algorithm) {
  const bool blocked = algorithm == "blocked", read = algorithm == "read-contiguous";
  if (!blocked && !read && algorithm != "write-contiguous") {
    refuse("algorithm: expected blocked, read-contiguous or write-contiguous; got " + algorithm);
  }
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
  if (from.count() == 0) return;
  std::size_t extents[4];
  for (int i = 0; i < 4; ++i) extents[i] = from.shape[i];
  nb::gil_scoped_release release;
  if (blocked) {
    kernels().transpose_blocked(from.floats(), join_axes(from.shape, axes), to.floats(),
                                omp_get_max_threads());
  } else {
    const LoopOrder order = read ? LoopOrder::kReadContiguous : LoopOrder::kWriteContiguous;
    transpose4d(from.floats(), extents, axes.data(), order, to.floats());
  }
}

}  // namespace

void bind_transpose(nb::module_& m) {
  m.def("transpose", &transpose, nb::arg("x"), nb::arg("axes"), nb::arg("out"),
        nb::arg("algorithm"));
}

}  // namespace bestof
