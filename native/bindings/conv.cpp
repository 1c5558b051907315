// Convolution for Python: problems, the table, packed weights, runs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <omp.h>

#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/arena.h"
#include "bindings/array.h"
#include "bindings/module.h"

namespace bestof {
namespace {

using Shape = std::vector<long>;

enum class Direction { kForward, kBackwardInput, kBackwardWeight };

Direction direction_of(const std::string& name) {
  if (name == "forward") return Direction::kForward;
  if (name == "backward_input") return Direction::kBackwardInput;
  if (name == "backward_weight") return Direction::kBackwardWeight;
  refuse("direction: expected forward, backward_input or backward_weight; got " + name);
}

const Pass& pass_of(const Algorithm& algorithm, Direction direction) {
  if (direction == Direction::kForward) return algorithm.forward;
  return direction == Direction::kBackwardInput ? algorithm.backward_input : algorithm.backward_weight;
}

Activation activation_of(const std::string& name) {
  const std::pair<const char*, Activation> known[] = {{"", Activation::kNone},
                                                      {"relu", Activation::kRelu},
                                                      {"relu6", Activation::kRelu6},
                                                      {"silu", Activation::kSilu},
                                                      {"leaky_relu", Activation::kLeakyRelu},
                                                      {"hard_swish", Activation::kHardSwish}};
  for (const auto& [known_name, activation] : known) {
    if (name == known_name) return activation;
  }
  refuse("activation: expected relu, relu6, leaky_relu, silu or hard_swish; got " + name);
}

long axis_extent(const char* axis, long extent, long before, long after, long kernel, long stride, long dilation) {
  const long room = extent + before + after - dilation * (kernel - 1) - 1;
  if (room < 0) {
    refuse(std::string("w: expected a kernel that fits the padded input; its ") + axis + " of " +
           std::to_string(kernel) + " with dilation " + std::to_string(dilation) + " exceeds " +
           std::to_string(extent + before + after));
  }
  return room / stride + 1;
}

Element element_of(const std::string& name) {
  if (name == "float32") return Element::kFloat32;
  if (name == "bfloat16") return Element::kBfloat16;
  refuse("dtype: expected float32 or bfloat16; got " + name);
}

// `numbers`: stride y, x; pads top, bottom, left, right; dilation y, x; groups.
Problem make_problem(const Shape& x, const Shape& w, const Shape& numbers, const std::string& dtype) {
  constexpr long kMost = 1L << 31;  // keeps every product of extents that is formed below within 64 bits
  if (x.size() != 4) refuse("x: expected 4 dimensions (N, H, W, C); got shape " + describe(x));
  if (w.size() != 4) refuse("w: expected 4 dimensions (O, H, W, C / groups); got shape " + describe(w));
  if (numbers.size() != 9) refuse("numbers: expected 9");
  for (int i = 0; i < 4; ++i) {
    if (x[i] < (i == 0 ? 0 : 1) || x[i] >= kMost)
      refuse("x: expected extents of at least 1 (batch: 0); got " + describe(x));
    if (w[i] < 1 || w[i] >= kMost) refuse("w: expected extents of at least 1; got " + describe(w));
  }
  const char* names[] = {"stride",  "stride",   "padding",  "padding", "padding",
                         "padding", "dilation", "dilation", "groups"};
  for (int i = 0; i < 9; ++i) {
    const long least = i >= 2 && i < 6 ? 0 : 1;
    if (numbers[i] < least || numbers[i] >= kMost) {
      refuse(std::string(names[i]) + ": expected " + (least ? "positive" : "non-negative") + " integers; got " +
             std::to_string(numbers[i]));
    }
  }
  Problem p;
  p.element = element_of(dtype);
  p.batch = x[0];
  p.in_height = x[1];
  p.in_width = x[2];
  p.in_channels = x[3];
  p.out_channels = w[0];
  p.kernel_height = w[1];
  p.kernel_width = w[2];
  p.stride_y = numbers[0];
  p.stride_x = numbers[1];
  p.pad_top = numbers[2];
  p.pad_bottom = numbers[3];
  p.pad_left = numbers[4];
  p.pad_right = numbers[5];
  p.dilation_y = numbers[6];
  p.dilation_x = numbers[7];
  p.groups = numbers[8];
  if (p.in_channels % p.groups || p.out_channels % p.groups) {
    refuse("groups: expected a divisor of " + std::to_string(p.in_channels) + " input and " +
           std::to_string(p.out_channels) + " output channels; got " + std::to_string(p.groups));
  }
  if (w[3] != p.in_channels / p.groups) {
    refuse("w: expected " + std::to_string(p.in_channels / p.groups) + " channels (those of x, " +
           std::to_string(p.in_channels) + ", by groups, " + std::to_string(p.groups) + "); got " +
           std::to_string(w[3]));
  }
  p.out_height = axis_extent("height", p.in_height, p.pad_top, p.pad_bottom, p.kernel_height, p.stride_y, p.dilation_y);
  p.out_width = axis_extent("width", p.in_width, p.pad_left, p.pad_right, p.kernel_width, p.stride_x, p.dilation_x);
  // 2^40 elements is more than any machine holds, and leaves room for the factors of scratch.
  const double most = std::ldexp(1.0, 40);
  const double in = 1.0 * p.batch * p.in_height * p.in_width * p.in_channels;
  const double out = 1.0 * p.batch * p.out_height * p.out_width * p.out_channels;
  const double taps = 1.0 * p.kernel_height * p.kernel_width;
  if (in > most || out > most || taps * p.out_channels * w[3] > most || taps > std::ldexp(1.0, 24)) {
    refuse("x: expected a problem of fewer than 2^40 elements; got x " + describe(x) + " and w " + describe(w));
  }
  return p;
}

Shape x_shape(const Problem& p) {
  return {p.batch, p.in_height, p.in_width, p.in_channels};
}
Shape w_shape(const Problem& p) {
  return {p.out_channels, p.kernel_height, p.kernel_width, p.in_channels / p.groups};
}
Shape y_shape(const Problem& p) {
  return {p.batch, p.out_height, p.out_width, p.out_channels};
}

std::string describe_problem(const Problem& p) {
  return "x " + describe(x_shape(p)) + ", w " + describe(w_shape(p)) + ", stride (" + std::to_string(p.stride_y) +
         ", " + std::to_string(p.stride_x) + "), dilation (" + std::to_string(p.dilation_y) + ", " +
         std::to_string(p.dilation_x) + "), groups " + std::to_string(p.groups) +
         (p.element == Element::kBfloat16 ? ", bfloat16" : "");
}

const Pass& find_pass(const std::string& name, Direction direction, const Problem& p) {
  std::string names;
  for (int i = 0; i < kernels().algorithm_count; ++i) {
    const Algorithm& algorithm = *kernels().algorithms[i];
    const Pass& pass = pass_of(algorithm, direction);
    if (!applies(algorithm, pass, p)) continue;
    if (name == algorithm.name) return pass;
    names += std::string(names.empty() ? "" : ", ") + algorithm.name;
  }
  refuse("algorithm: expected one that applies to " + describe_problem(p) + " (" + names + "); got " + name);
}

long packed_floats(const Pass& pass, const Problem& p) {
  return pass.packed_floats ? pass.packed_floats(p) : 0;
}

// Floats of packed weights and scratch together, the packed weights rounded to a cache line.
long run_floats(const Pass& pass, const Problem& p, int threads) {
  return (packed_floats(pass, p) + 15) / 16 * 16 + pass.scratch_floats(p, threads);
}

double promised_error(const Pass& pass, const Problem& p, Direction direction) {
  // The channels that are summed over: of x forward, of y for its gradient. The sum of a weight gradient runs over
  // pixels, 512 of which count as 512 channels of one tap do.
  double terms = static_cast<double>(p.in_channels / p.groups);
  if (direction == Direction::kBackwardInput) terms = static_cast<double>(p.out_channels / p.groups);
  if (direction == Direction::kBackwardWeight) terms = 1.0 * p.batch * p.out_height * p.out_width / 9.0;
  return pass.rounding + pass.error_growth * std::fmax(1.0, std::sqrt(terms / 512.0));
}

using Row = std::tuple<std::string, double, long, double, bool>;

std::vector<Row> algorithms(const Problem& p, const std::string& direction_name, int threads) {
  const Direction direction = direction_of(direction_name);
  std::vector<Row> rows;
  for (int i = 0; i < kernels().algorithm_count; ++i) {
    const Algorithm& algorithm = *kernels().algorithms[i];
    const Pass& pass = pass_of(algorithm, direction);
    if (!applies(algorithm, pass, p)) continue;
    rows.emplace_back(algorithm.name, promised_error(pass, p, direction), run_floats(pass, p, threads) * 4,
                      pass.flops(p), pass.pack != nullptr);
  }
  return rows;
}

struct PackedWeights {
  std::string algorithm, isa;
  Shape shape;
  long groups, bytes;
  Memory memory;
};

std::unique_ptr<PackedWeights> pack_weights(nb::handle w, const std::string& algorithm, long groups,
                                            const std::string& dtype, int threads) {
  const Array weights = read_array(w, "w", 4, element_of(dtype));
  const Shape& s = weights.shape;
  if (groups < 1) refuse("groups: expected positive integers; got " + std::to_string(groups));
  const Problem p = make_problem({1, s[1], s[2], s[3] * groups}, s, {1, 1, 0, 0, 0, 0, 1, 1, groups}, dtype);
  const Pass& pass = find_pass(algorithm, Direction::kForward, p);
  if (!pass.pack) refuse("algorithm: expected one that packs weights; got " + algorithm);
  const long floats = pass.packed_floats(p);
  auto packed =
      std::make_unique<PackedWeights>(PackedWeights{algorithm, kernels().isa, s, groups, floats * 4, allocate(floats)});
  if (!packed->memory) refuse("w: no memory for " + std::to_string(floats * 4) + " bytes of packed weights");
  nb::gil_scoped_release release;
  pass.pack(p, weights.data, packed->memory.get(), threads);
  return packed;
}

void execute(const Pass& pass, Direction direction, const Problem& p, Call call, bool pack) {
  if (p.batch == 0) {
    // No image: nothing to write, but for the weight gradient, which is a sum of nothing.
    if (direction == Direction::kBackwardWeight) {
      for (long i = 0; i < p.out_channels * p.kernel_height * p.kernel_width * (p.in_channels / p.groups); ++i) {
        call.result[i] = 0.0f;
      }
    }
    return;
  }
  const long packed = pack ? (packed_floats(pass, p) + 15) / 16 * 16 : 0;
  float* memory = scratch(packed + pass.scratch_floats(p, call.threads));
  if (!memory) refuse("scratch: no memory for " + std::to_string(run_floats(pass, p, call.threads) * 4) + " bytes");
  {
    nb::gil_scoped_release release;
    call.scratch = memory + packed;
    if (packed) {
      pass.pack(p, call.second, memory, call.threads);
      call.second = memory;
    }
    pass.run(p, call);
  }
  if (!guard_stands()) {
    PyErr_SetString(PyExc_SystemError, ("bestof: a kernel wrote past its scratch for " + describe_problem(p)).c_str());
    throw nb::python_error();
  }
}

const float* packed_data(const PackedWeights& w, const std::string& algorithm, const Problem& p) {
  if (w.isa != kernels().isa) {
    refuse("w: expected weights packed for " + std::string(kernels().isa) + "; got some for " + w.isa + ": pack again");
  }
  if (w.algorithm != algorithm) {
    refuse("w: expected weights packed for " + algorithm + "; got some for " + w.algorithm);
  }
  if (w.shape != w_shape(p) || w.groups != p.groups) {
    refuse("w: expected packed weights of shape " + describe(w_shape(p)) + " and groups " + std::to_string(p.groups) +
           "; got " + describe(w.shape) + " and " + std::to_string(w.groups));
  }
  return w.memory.get();
}

int threads_of(int threads) {
  if (threads < 0 || threads > 4096) refuse("threads: expected 1 to 4096; got " + std::to_string(threads));
  return threads > 0 ? threads : omp_get_max_threads();
}

void forward(const Problem& p, const std::string& algorithm, nb::handle x, nb::handle w, nb::handle bias,
             nb::handle residual, nb::handle out, const std::string& activation, float slope, int threads) {
  const Pass& pass = find_pass(algorithm, Direction::kForward, p);
  const Activation function = activation_of(activation);
  threads = threads_of(threads);
  const Array image = read_array(x, "x", 4, p.element), result = write_array(out, "out", 4, p.element);
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
  execute(pass, Direction::kForward, p, {image.data, second, result.data, epilogue, nullptr, threads},
          !packed && pass.pack);
}

void backward(const Problem& p, const std::string& direction_name, const std::string& algorithm, nb::handle grad,
              nb::handle other, nb::handle out, int threads) {
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
  execute(pass, direction, p, {gradient.data, second.data, result.data, none, nullptr, threads}, false);
}

// A run whose problem and algorithm were checked once: addresses in, nothing copied, nothing checked.
struct Plan {
  Problem problem;
  Direction direction;
  const Pass* pass;
  std::string algorithm, isa;
  Activation activation;
  float slope;

  Plan(const Problem& p, const std::string& direction_name, const std::string& algorithm_name,
       const std::string& activation_name, float slope_below)
      : problem(p),
        direction(direction_of(direction_name)),
        pass(&find_pass(algorithm_name, direction, p)),
        algorithm(algorithm_name),
        isa(kernels().isa),
        activation(activation_of(activation_name)),
        slope(slope_below) {}

  void run(std::size_t first, std::size_t second, std::size_t out, std::size_t bias, std::size_t residual) const {
    const Epilogue epilogue = {reinterpret_cast<const float*>(bias), reinterpret_cast<const float*>(residual),
                               activation, slope};
    execute(*pass, direction, problem,
            {reinterpret_cast<const float*>(first), reinterpret_cast<const float*>(second),
             reinterpret_cast<float*>(out), epilogue, nullptr, omp_get_max_threads()},
            pass->pack != nullptr);
  }

  void run_packed(std::size_t first, const PackedWeights& w, std::size_t out, std::size_t bias,
                  std::size_t residual) const {
    const Epilogue epilogue = {reinterpret_cast<const float*>(bias), reinterpret_cast<const float*>(residual),
                               activation, slope};
    if (direction != Direction::kForward) refuse("w: expected an address; packed weights serve the forward pass only");
    if (isa != w.isa || w.algorithm != algorithm || w.shape != w_shape(problem) || w.groups != problem.groups) {
      refuse("w: expected weights packed for " + algorithm + " on " + isa + " of shape " + describe(w_shape(problem)) +
             "; got some for " + w.algorithm + " on " + w.isa + " of shape " + describe(w.shape));
    }
    execute(*pass, direction, problem,
            {reinterpret_cast<const float*>(first), w.memory.get(), reinterpret_cast<float*>(out), epilogue, nullptr,
             omp_get_max_threads()},
            false);
  }
};

}  // namespace

void bind_conv(nb::module_& m) {
  nb::class_<Problem>(m, "Problem")
      .def("__init__", [](Problem* self, const Shape& x, const Shape& w, const Shape& numbers,
                          const std::string& dtype) { new (self) Problem(make_problem(x, w, numbers, dtype)); })
      .def_prop_ro("x_shape", [](const Problem& p) { return nb::tuple(nb::cast(x_shape(p))); })
      .def_prop_ro("w_shape", [](const Problem& p) { return nb::tuple(nb::cast(w_shape(p))); })
      .def_prop_ro("y_shape", [](const Problem& p) { return nb::tuple(nb::cast(y_shape(p))); });
  nb::class_<PackedWeights>(m, "PackedWeights")
      .def_ro("algorithm", &PackedWeights::algorithm)
      .def_ro("isa", &PackedWeights::isa)
      .def_ro("groups", &PackedWeights::groups)
      .def_ro("nbytes", &PackedWeights::bytes)
      .def_prop_ro("shape", [](const PackedWeights& w) { return nb::tuple(nb::cast(w.shape)); });
  nb::class_<Plan>(m, "Plan")
      .def(nb::init<const Problem&, const std::string&, const std::string&, const std::string&, float>())
      .def("run", &Plan::run)
      .def("run_packed", &Plan::run_packed);
  m.def("algorithms", [](const Problem& p, const std::string& direction, int threads) {
    return algorithms(p, direction, threads_of(threads));
  });
  m.def("pack_weights", [](nb::handle w, const std::string& algorithm, long groups, const std::string& dtype,
                           int threads) { return pack_weights(w, algorithm, groups, dtype, threads_of(threads)); });
  m.def("forward", &forward, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg());
  m.def("backward", &backward);
}

}  // namespace bestof
