// Pooling for Python.
#include "pool/pool.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <omp.h>

#include <string>
#include <vector>

#include "bindings/array.h"
#include "bindings/module.h"
#include "bindings/problem.h"

namespace bestof {
namespace {

// With `ceil`, the last window may reach beyond the padded axis, if it begins before the end of the
// axis itself.
long pooled_extent(const char* axis, long extent, long kernel, long stride, long pad, bool ceil) {
  if (kernel < 1 || stride < 1 || pad < 0 || kernel > 1L << 30 || stride > 1L << 30) {
    refuse("kernel, stride, padding: expected positive, positive and non-negative integers; got " +
           std::to_string(kernel) + ", " + std::to_string(stride) + ", " + std::to_string(pad));
  }
  if (pad > kernel / 2) {
    refuse("padding: expected at most half of the kernel, " + std::to_string(kernel / 2) +
           "; got " + std::to_string(pad));
  }
  if (extent + 2 * pad < kernel) {
    refuse(std::string("kernel: expected one that fits the padded ") + axis + " of " +
           std::to_string(extent + 2 * pad) + "; got " + std::to_string(kernel));
  }
  const long steps = extent + 2 * pad - kernel;
  const bool one_more = ceil && steps % stride != 0 && (steps / stride + 1) * stride < extent + pad;
  return steps / stride + 1 + one_more;
}

// `numbers`: kernel y, x; stride y, x; padding y, x; whether extents are rounded up.
PoolProblem make_problem(const std::vector<long>& x, const std::vector<long>& numbers, bool maximum,
                         bool count_padding, Element element = Element::kFloat32) {
  if (x.size() != 4) refuse("x: expected 4 dimensions (N, H, W, C); got shape " + describe(x));
  if (numbers.size() != 7) refuse("numbers: expected 7; got " + std::to_string(numbers.size()));
  double elements =
      1.0;  // more than 2^40 are more than any machine holds, and would not stay within 64 bits
  for (long extent : x) {
    if (extent < 0 || extent >= 1L << 31)
      refuse("x: expected extents from 0 to 2^31 - 1; got " + describe(x));
    elements *= static_cast<double>(extent);
  }
  if (elements > static_cast<double>(1L << 40))
    refuse("x: expected at most 2^40 elements; got " + describe(x));
  PoolProblem p = {};
  p.batch = x[0];
  p.in_height = x[1];
  p.in_width = x[2];
  p.channels = x[3];
  p.kernel_height = numbers[0];
  p.kernel_width = numbers[1];
  p.stride_y = numbers[2];
  p.stride_x = numbers[3];
  p.pad_top = numbers[4];
  p.pad_left = numbers[5];
  p.maximum = maximum;
  p.count_padding = count_padding;
  p.element = element;
  p.out_height =
      pooled_extent("height", p.in_height, p.kernel_height, p.stride_y, p.pad_top, numbers[6]);
  p.out_width =
      pooled_extent("width", p.in_width, p.kernel_width, p.stride_x, p.pad_left, numbers[6]);
  return p;
}

std::vector<long> pooled_shape(const PoolProblem& p) {
  return {p.batch, p.out_height, p.out_width, p.channels};
}

void pool(nb::handle x, nb::handle out, const std::vector<long>& numbers, bool maximum,
          bool count_padding, const std::string& dtype, int threads) {
  const Element element = element_of(dtype);
  const Array from = read_array(x, "x", 4, element), to = write_array(out, "out", 4, element);
  const PoolProblem p = make_problem(from.shape, numbers, maximum, count_padding, element);
  expect_shape(to, "out", pooled_shape(p));
  expect_apart(to, "out", from, "x");
  if (to.count() == 0) return;
  nb::gil_scoped_release release;
  kernels().pool_forward(p, from.data, to.data, threads > 0 ? threads : omp_get_max_threads());
}

// A pooling whose problem was checked once. It runs on addresses, which it does not check.
struct PoolPlan {
  PoolProblem problem;

  void run(std::size_t x, std::size_t y) const {
    if (problem.batch == 0) return;
    nb::gil_scoped_release release;
    kernels().pool_forward(problem, reinterpret_cast<const void*>(x), reinterpret_cast<void*>(y),
                           omp_get_max_threads());
  }
};

void pool_backward(nb::handle grad, nb::handle x, nb::handle out, const std::vector<long>& numbers,
                   bool maximum, bool count_padding, int threads) {
  const Array gradient = read_array(grad, "grad", 4), to = write_array(out, "out", 4);
  const PoolProblem p = make_problem(to.shape, numbers, maximum, count_padding);
  expect_shape(gradient, "grad", pooled_shape(p));
  expect_apart(to, "out", gradient, "grad");
  Array from;
  if (maximum) {
    from = read_array(x, "x", 4);
    expect_shape(from, "x", to.shape);
    expect_apart(to, "out", from, "x");
  }
  if (to.count() == 0) return;
  nb::gil_scoped_release release;
  kernels().pool_backward(p, gradient.floats(), from.floats(), to.floats(),
                          threads > 0 ? threads : omp_get_max_threads());
}

}  // namespace

void bind_pool(nb::module_& m) {
  nb::class_<PoolPlan>(m, "PoolPlan")
      .def("__init__",
           [](PoolPlan* self, const std::vector<long>& x, const std::vector<long>& numbers,
              bool maximum, bool count_padding, const std::string& dtype, long pitch) {
             PoolProblem p = make_problem(x, numbers, maximum, count_padding, element_of(dtype));
             if (pitch) expect_pitch(pitch, p.channels);
             p.pitch = pitch;
             new (self) PoolPlan{p};
           })
      .def_prop_ro(
          "y_shape",
          [](const PoolPlan& plan) { return nb::tuple(nb::cast(pooled_shape(plan.problem))); })
      .def("run", &PoolPlan::run);
  m.def("pool", &pool);
  m.def("pool_backward", &pool_backward, nb::arg(), nb::arg().none(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg());
}

}  // namespace bestof
