// Convolution for Python: problems, the table, packed weights, runs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/execute.h"
#include "bindings/module.h"
#include "bindings/packed_weights.h"

namespace bestof {
namespace {

double promised_error(const Pass& pass, const Problem& p, Direction direction) {
  // The channels that are summed over: of x forward, of y for its gradient. The sum of a weight
  // gradient runs over pixels, 512 of which count as 512 channels of one tap do.
  double terms = static_cast<double>(p.in_channels / p.groups);
  if (direction == Direction::kBackwardInput)
    terms = static_cast<double>(p.out_channels / p.groups);
  if (direction == Direction::kBackwardWeight)
    terms = 1.0 * p.batch * p.out_height * p.out_width / 9.0;
  return pass.rounding + pass.error_growth * std::fmax(1.0, std::sqrt(terms / 512.0));
}

using Row = std::tuple<std::string, double, long, double, bool, bool>;

std::vector<Row> algorithms(const Problem& p, const std::string& direction_name, int threads) {
  const Direction direction = direction_of(direction_name);
  std::vector<Row> rows;
  for (int i = 0; i < kernels().algorithm_count; ++i) {
    const Algorithm& algorithm = *kernels().algorithms[i];
    const Pass& pass = pass_of(algorithm, direction);
    if (!applies(algorithm, pass, p)) continue;
    rows.emplace_back(algorithm.name, promised_error(pass, p, direction),
                      run_floats(pass, p, threads) * 4, pass.flops(p), pass.pack != nullptr,
                      pass.pools);
  }
  return rows;
}

void forward(const Problem& p, const std::string& algorithm, nb::handle x, nb::handle w,
             nb::handle bias, nb::handle residual, nb::handle out, const std::string& activation,
             float slope, int threads) {
  const Pass& pass = find_pass(algorithm, Direction::kForward, p);
  const Activation function = activation_of(activation);
  threads = threads_of(threads);
  const Array image = read_array(x, "x", 4, p.element),
              result = write_array(out, "out", 4, p.element);
  expect_shape(image, "x", x_shape(p));
  expect_shape(result, "out", y_shape(p));
  expect_apart(result, "out", image, "x");
  Array weights, offsets, addend;
  const float* second = nullptr;
  const bool packed = nb::isinstance<PackedWeights>(w);
  if (packed) {
    second = packed_data(*nb::cast<PackedWeights*>(w), algorithm, p);
  } else {
    weights = read_array(w, "w", 4, p.element);
    expect_shape(weights, "w", w_shape(p));
    expect_apart(result, "out", weights, "w");
    second = weights.data;
  }
  if (!bias.is_none()) {
    offsets = read_array(bias, "bias", 1);
    expect_shape(offsets, "bias", {p.out_channels});
    expect_apart(result, "out", offsets, "bias");
  }
  if (!residual.is_none()) {
    addend = read_array(residual, "residual", 4, p.element);
    expect_shape(addend, "residual", y_shape(p));
    // In place is meant: y += convolution reads each element just before it is written.
    if (addend.data != result.data) expect_apart(result, "out", addend, "residual");
  }
  const Epilogue epilogue = {offsets.data, addend.data, function, slope};
  execute(pass, Direction::kForward, p,
          {image.data, second, result.data, epilogue, nullptr, threads}, !packed && pass.pack);
}

void backward(const Problem& p, const std::string& direction_name, const std::string& algorithm,
              nb::handle grad, nb::handle other, nb::handle out, int threads) {
  const Direction direction = direction_of(direction_name);
  const bool input = direction == Direction::kBackwardInput;
  const char* name = input ? "w" : "x";
  const Pass& pass = find_pass(algorithm, direction, p);
  threads = threads_of(threads);
  const Array gradient = read_array(grad, "grad", 4), second = read_array(other, name, 4);
  const Array result = write_array(out, "out", 4);
  expect_shape(gradient, "grad", y_shape(p));
  expect_shape(second, name, input ? w_shape(p) : x_shape(p));
  expect_shape(result, "out", input ? x_shape(p) : w_shape(p));
  expect_apart(result, "out", gradient, "grad");
  expect_apart(result, "out", second, name);
  const Epilogue none = {nullptr, nullptr, Activation::kNone, 0.0f};
  execute(pass, direction, p, {gradient.data, second.data, result.data, none, nullptr, threads},
          false);
}

}  // namespace

void bind_conv(nb::module_& m) {
  nb::class_<Problem>(m, "Problem")
      .def("__init__",
           [](Problem* self, const Shape& x, const Shape& w, const Shape& numbers,
              const std::string& dtype) { new (self) Problem(make_problem(x, w, numbers, dtype)); })
      .def_prop_ro("x_shape", [](const Problem& p) { return nb::tuple(nb::cast(x_shape(p))); })
      .def_prop_ro("w_shape", [](const Problem& p) { return nb::tuple(nb::cast(w_shape(p))); })
      .def_prop_ro("y_shape", [](const Problem& p) { return nb::tuple(nb::cast(y_shape(p))); });
  nb::class_<PackedWeights>(m, "PackedWeights")
      .def_ro("algorithm", &PackedWeights::algorithm)
      .def_ro("isa", &PackedWeights::isa)
      .def_ro("groups", &PackedWeights::groups)
      .def_ro("nbytes", &PackedWeights::bytes)
      .def_prop_ro("shape", [](const PackedWeights& w) { return nb::tuple(nb::cast(w.shape)); })
      .def_prop_ro("address",
                   [](const PackedWeights& w) { return reinterpret_cast<std::size_t>(&w); });
  m.def("algorithms", [](const Problem& p, const std::string& direction, int threads) {
    return algorithms(p, direction, threads_of(threads));
  });
  m.def("pack_weights",
        [](nb::handle w, const std::string& algorithm, long groups, const std::string& dtype,
           int threads) { return pack_weights(w, algorithm, groups, dtype, threads_of(threads)); });
  m.def("forward", &forward, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
        nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
  m.def("backward", &backward);
}

}  // namespace bestof
