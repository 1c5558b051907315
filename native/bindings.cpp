// The Python face of the native kernels. Validates its arguments; the only file that throws.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <array>
#include <stdexcept>
#include <string>

#include "transpose/transpose.h"

namespace nb = nanobind;
using Input = nb::ndarray<const float, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<float, nb::ndim<4>, nb::c_contig, nb::device::cpu>;

namespace {

bestof::LoopOrder loop_order(const std::string& algorithm) {
  if (algorithm == "read-contiguous") return bestof::LoopOrder::kReadContiguous;
  if (algorithm == "write-contiguous") return bestof::LoopOrder::kWriteContiguous;
  throw nb::value_error(("algorithm: expected read-contiguous or write-contiguous, got " + algorithm).c_str());
}

void transpose(Input x, std::array<int, 4> axes, Output out, const std::string& algorithm) {
  const bestof::LoopOrder order = loop_order(algorithm);
  bool seen[4] = {false, false, false, false};
  for (int axis : axes) {
    if (axis < 0 || axis > 3 || seen[axis])
      throw nb::value_error("axes: expected a permutation of 0, 1, 2, 3 without repetition");
    seen[axis] = true;
  }
  std::size_t shape[4];
  for (int i = 0; i < 4; ++i) shape[i] = x.shape(i);
  for (int i = 0; i < 4; ++i)
    if (out.shape(i) != shape[axes[i]]) throw nb::value_error("out: its shape is not that of the transposed x");
  const float* from = x.data();
  float* to = out.data();
  nb::gil_scoped_release release;
  bestof::transpose4d(from, shape, axes.data(), order, to);
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Native kernels of bestof; use bestof.kernels, which explains them.";
  m.def("transpose", &transpose, nb::arg("x"), nb::arg("axes"), nb::arg("out"), nb::arg("algorithm"));
}
