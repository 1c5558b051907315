// Convolution for Python: problems, the table, packed weights, runs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <string>
#include <vector>

#include "bindings/execute.h"
#include "bindings/module.h"
#include "bindings/packed_weights.h"

namespace bestof {
namespace {

// What a row promises for one problem.
struct Promise {
  const char* name;
  ErrorBound error;
  long scratch_bytes;
  double flops;
  bool packs, pools, pitches;
};

ErrorBound promised_error(const Algorithm& algorithm, const Problem& p, Direction direction) {
  // The channels that are summed over: those of x forward, those of y for the input gradient. A
  // weight gradient sums over pixels; 9 of them count as one channel of a 3x3 kernel.
  double terms = static_cast<double>(p.in_channels / p.groups);
  if (direction == Direction::kBackwardInput)
    terms = static_cast<double>(p.out_channels / p.groups);
  if (direction == Direction::kBackwardWeight)
    terms = 1.0 * p.batch * p.out_height * p.out_width / 9.0;
  const double growth = std::fmax(1.0, std::sqrt(terms / 512.0));
  ErrorBound rounding = algorithm.rounding;
  // Results of bfloat16 are rounded also by algorithms that round no operand.
  if (p.element == Element::kBfloat16 && algorithm.rounds == Rounds::kNothing)
    rounding = kRoundedResult;
  return {rounding.rms + algorithm.error.rms * growth,
          rounding.maximum + algorithm.error.maximum * growth};
}

std::vector<Promise> promises(const Problem& p, const std::string& direction_name, int threads) {
  const Direction direction = direction_of(direction_name);
  std::vector<Promise> promised;
  for (int i = 0; i < kernels().algorithm_count; ++i) {
    const Algorithm& algorithm = kernels().algorithms[i];
    const Pass& pass = pass_of(algorithm, direction);
    if (!applies(algorithm, pass, p)) continue;
    promised.push_back({algorithm.name, promised_error(algorithm, p, direction),
                        run_floats(pass, p, threads) * 4, pass.flops(p), pass.pack != nullptr,
                        algorithm.pools && direction == Direction::kForward,
                        algorithm.pitches && direction == Direction::kForward});
  }
  return promised;
}

std::vector<Algorithm> rows() {
  return {kernels().algorithms, kernels().algorithms + kernels().algorithm_count};
}

const char* shapes_of(const Algorithm& algorithm) {
  const char* names[] = {"any", "kernel", "grouped kernel", "depthwise", "few rows"};
  return names[static_cast<int>(algorithm.domain.shapes)];
}

const char* rounds_of(const Algorithm& algorithm) {
  const char* names[] = {"nothing", "weights", "both"};
  return names[static_cast<int>(algorithm.rounds)];
}

const char* accuracy_of(const Algorithm& algorithm) {
  return algorithm.accuracy == Accuracy::kFloat32 ? "float32" : "relaxed";
}

std::vector<std::string> directions_of(const Algorithm& algorithm) {
  std::vector<std::string> names;
  for (const char* name : {"forward", "backward_input", "backward_weight"}) {
    if (pass_of(algorithm, direction_of(name)).run) names.push_back(name);
  }
  return names;
}

void bind_rows(nb::module_& m) {
  nb::class_<ErrorBound>(m, "ErrorBound")
      .def_ro("rms", &ErrorBound::rms)
      .def_ro("maximum", &ErrorBound::maximum);
  nb::class_<Algorithm>(m, "Row")
      .def_prop_ro("name", [](const Algorithm& row) { return row.name; })
      .def_prop_ro("shapes", &shapes_of)
      .def_prop_ro("kernel_height", [](const Algorithm& row) { return row.domain.kernel_height; })
      .def_prop_ro("kernel_width", [](const Algorithm& row) { return row.domain.kernel_width; })
      .def_prop_ro("stride", [](const Algorithm& row) { return row.domain.stride; })
      .def_prop_ro("directions", &directions_of)
      .def_ro("error", &Algorithm::error)
      .def_ro("rounding", &Algorithm::rounding)
      .def_prop_ro("rounds", &rounds_of)
      .def_prop_ro("accuracy", &accuracy_of)
      .def_ro("transforms", &Algorithm::transforms)
      .def_ro("pools", &Algorithm::pools)
      .def_ro("pitches", &Algorithm::pitches)
      .def_prop_ro("dtypes", [](const Algorithm& row) { return names_of(row.dtypes); })
      .def_ro("parts", &Algorithm::parts)
      .def_ro("emulated", &Algorithm::emulated)
      .def_ro("eager", &Algorithm::eager)
      .def_ro("linear", &Algorithm::linear)
      .def_ro("planes", &Algorithm::planes);
  nb::class_<Promise>(m, "Promise")
      .def_prop_ro("name", [](const Promise& promise) { return promise.name; })
      .def_ro("error", &Promise::error)
      .def_ro("scratch_bytes", &Promise::scratch_bytes)
      .def_ro("flops", &Promise::flops)
      .def_ro("packs", &Promise::packs)
      .def_ro("pools", &Promise::pools)
      .def_ro("pitches", &Promise::pitches);
  m.def("rows", &rows);
  m.def("promises", [](const Problem& p, const std::string& direction, int threads) {
    return promises(p, direction, threads_of(threads));
  });
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
  const void* second = nullptr;
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
    // y += convolution may work in place: each element is read just before it is written.
    if (addend.data != result.data) expect_apart(result, "out", addend, "residual");
  }
  const Epilogue epilogue = {offsets.floats(), addend.data, function, slope};
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
  execute(pass, direction, p, {gradient.data, second.data, result.data, {}, nullptr, threads},
          false);
}

}  // namespace

void bind_conv(nb::module_& m) {
  nb::class_<Problem>(m, "Problem")
      .def("__init__",
           [](Problem* self, const Shape& x, const Shape& w, const Shape& numbers,
              const std::string& dtype,
              bool planes) { new (self) Problem(make_problem(x, w, numbers, dtype, planes)); })
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
  bind_rows(m);
  m.def("pack_weights",
        [](nb::handle w, const std::string& algorithm, long groups, const std::string& dtype,
           int threads) { return pack_weights(w, algorithm, groups, dtype, threads_of(threads)); });
  m.def("forward", &forward, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
        nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
  m.def("backward", &backward);
}

}  // namespace bestof
