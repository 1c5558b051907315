// Batch norm with fixed statistics for Python.
#include "frozen_norm/frozen_norm.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <string>
#include <vector>

#include "bindings/array.h"
#include "bindings/execute.h"
#include "bindings/module.h"
#include "bindings/problem.h"

namespace bestof {
namespace {

// Reads one number a channel; `rest` for every channel if the value is None.
std::vector<double> per_channel(nb::handle value, const char* name, long channels, double rest) {
  if (value.is_none()) return std::vector<double>(channels, rest);
  const Array array = read_array(value, name, 1);
  expect_shape(array, name, {channels});
  return {array.floats(), array.floats() + channels};
}

// weight / sqrt(variance + eps) of each channel, in double.
std::vector<double> scales(nb::handle variance, nb::handle weight, long channels, double eps) {
  std::vector<double> result = per_channel(weight, "weight", channels, 1.0);
  const std::vector<double> spread = per_channel(variance, "variance", channels, 1.0);
  for (long c = 0; c < channels; ++c) result[c] /= std::sqrt(spread[c] + eps);
  return result;
}

std::vector<float> rounded(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

FrozenNormProblem problem_of(const Array& x, bool channels_last, bool relu) {
  const long channels = channels_last ? x.shape.back() : x.shape[1];
  FrozenNormProblem p = {1, channels, 1, relu, x.element};
  for (std::size_t axis = 0; axis < x.shape.size(); ++axis) {
    if (channels_last ? axis + 1 < x.shape.size() : axis == 0) p.outer *= x.shape[axis];
    if (!channels_last && axis > 1) p.inner *= x.shape[axis];
  }
  return p;
}

void expect_rank(const Array& x, const char* name) {
  if (x.shape.size() < 2)
    refuse(std::string(name) + ": expected two axes or more, channels among them; got the shape " +
           describe(x.shape));
}

// An array may be written in place; it must not overlap another one in part.
void expect_same_or_apart(const Array& written, const char* name, const Array& other,
                          const char* other_name) {
  if (written.data != other.data) expect_apart(written, name, other, other_name);
}

void forward(nb::handle x, nb::handle mean, nb::handle variance, nb::handle weight, nb::handle bias,
             nb::handle y, double eps, bool channels_last, bool relu, const std::string& dtype,
             int threads) {
  const Element element = element_of(dtype);
  const Array input = read_array(x, "x", kAnyRank, element);
  const Array out = write_array(y, "out", kAnyRank, element);
  expect_rank(input, "x");
  expect_shape(out, "out", input.shape);
  expect_same_or_apart(out, "out", input, "x");
  const FrozenNormProblem p = problem_of(input, channels_last, relu);
  const std::vector<double> scale = scales(variance, weight, p.channels, eps);
  std::vector<double> shift = per_channel(bias, "bias", p.channels, 0.0);
  const std::vector<double> middle = per_channel(mean, "mean", p.channels, 0.0);
  for (long c = 0; c < p.channels; ++c) shift[c] -= middle[c] * scale[c];
  const std::vector<float> factors = rounded(scale), terms = rounded(shift);
  const int wanted = threads_of(threads);
  if (input.count() == 0) return;
  nb::gil_scoped_release release;
  kernels().frozen_norm_forward(p, input.data, factors.data(), terms.data(), out.data, wanted);
}

void backward(nb::handle gradient, nb::handle y, nb::handle variance, nb::handle weight,
              nb::handle slope, double eps, bool channels_last, const std::string& dtype,
              int threads) {
  const Element element = element_of(dtype);
  const Array upstream = read_array(gradient, "gradient", kAnyRank, element);
  const Array out = write_array(slope, "out", kAnyRank, element);
  expect_rank(upstream, "gradient");
  expect_shape(out, "out", upstream.shape);
  expect_same_or_apart(out, "out", upstream, "gradient");
  Array result;
  if (!y.is_none()) {
    result = read_array(y, "y", kAnyRank, element);
    expect_shape(result, "y", upstream.shape);
    expect_same_or_apart(out, "out", result, "y");
  }
  const FrozenNormProblem p = problem_of(upstream, channels_last, !y.is_none());
  const std::vector<float> factors = rounded(scales(variance, weight, p.channels, eps));
  const int wanted = threads_of(threads);
  if (upstream.count() == 0) return;
  nb::gil_scoped_release release;
  kernels().frozen_norm_backward(p, upstream.data, result.data, factors.data(), out.data, wanted);
}

}  // namespace

void bind_frozen_norm(nb::module_& m) {
  m.def("frozen_norm_forward", &forward, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
        nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
  m.def("frozen_norm_backward", &backward, nb::arg(), nb::arg().none(), nb::arg(), nb::arg().none(),
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
}

}  // namespace bestof
