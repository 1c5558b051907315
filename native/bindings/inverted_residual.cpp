// Three convolutions as one (conv/inverted_residual.h), for Python.
#include "conv/inverted_residual.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <omp.h>

#include <optional>
#include <string>

#include "bindings/arena.h"
#include "bindings/module.h"
#include "bindings/packed_weights.h"

namespace bestof {
namespace {

// The algorithms of a 1x1 convolution: products of float32, and of pairs of bfloat16.
constexpr const char *kWhole = "convgemm", *kPairs = "convgemm_bf16";

// One of the layers: its problem, and what is applied to its results.
struct ResidualLayer {
  Problem problem;
  std::string algorithm;
  Activation activation;
  float slope;
};

ResidualLayer layer_of(const Problem& p, const std::string& algorithm,
                       const std::string& activation, float slope) {
  find_algorithm(algorithm, Direction::kForward, p);
  return {p, algorithm, activation_of(activation), slope};
}

// A layer that the kernel reads as a matrix product of pixels, by convgemm or convgemm_bf16.
ResidualLayer pointwise(const Problem& p, const std::string& algorithm,
                        const std::string& activation, float slope) {
  const bool right = p.kernel_height == 1 && p.kernel_width == 1 && p.stride_y == 1 &&
                     p.stride_x == 1 && p.pad_top == 0 && p.pad_bottom == 0 && p.pad_left == 0 &&
                     p.pad_right == 0 && p.groups == 1;
  if (!right) {
    refuse("w: expected a 1x1 convolution without stride, padding and groups; got " +
           describe_problem(p));
  }
  if (algorithm != kWhole && algorithm != kPairs)
    refuse("algorithm: expected convgemm or convgemm_bf16; got " + algorithm);
  return layer_of(p, algorithm, activation, slope);
}

bool follows(const Problem& first, const Problem& second) {
  return first.element == second.element && first.batch == second.batch &&
         first.out_height == second.in_height && first.out_width == second.in_width &&
         first.out_channels == second.in_channels;
}

// Layers that were checked once. A run takes addresses, and neither copies nor checks them.
struct InvertedResidualPlan {
  std::optional<ResidualLayer> expansion, projection;
  ResidualLayer depthwise;
  InvertedResidual problem;
  bool pairs;  // whether the 1x1 convolutions multiply pairs of bfloat16

  InvertedResidualPlan(std::optional<ResidualLayer> first, ResidualLayer second,
                       std::optional<ResidualLayer> third)
      : expansion(std::move(first)), projection(std::move(third)), depthwise(std::move(second)) {
    const Problem& d = depthwise.problem;
    if (d.pad_left < 0 || d.pad_top < 0)
      refuse("padding: expected no negative ones of the depthwise layer");
    if ((expansion && !follows(expansion->problem, d)) ||
        (projection && !follows(d, projection->problem)))
      refuse("layers: expected each to take what the one before makes");
    if (expansion && projection && expansion->algorithm != projection->algorithm)
      refuse("algorithm: expected the same for both 1x1 convolutions");
    pairs = (expansion && expansion->algorithm == kPairs) ||
            (projection && projection->algorithm == kPairs);
    problem = {d, expansion ? expansion->problem.in_channels : 0,
               projection ? projection->problem.out_channels : 0};
    // Eight lines of 4,096 pixels with 960 channels are 2^25.
    constexpr long kMostFloats = 1 << 28;
    if (pass().scratch_floats(problem, 1) > kMostFloats)
      refuse("layers: their rows take more than a gigabyte a thread: " + describe_problem(d));
  }

  const InvertedResidualPass& pass() const {
    const InvertedResidualPass* found =
        pairs ? kernels().inverted_residual_bf16 : kernels().inverted_residual;
    if (!found) {
      refuse("algorithm: " + std::string(kernels().isa) +
             " multiplies bfloat16 by tiles, and has no kernel of pairs by rows");
    }
    return *found;
  }

  // 0 stands for an operand that is absent.
  void run(std::size_t x, const PackedWeights* w_expansion, std::size_t b_expansion,
           const PackedWeights& w_depthwise, std::size_t b_depthwise,
           const PackedWeights* w_projection, std::size_t b_projection, std::size_t residual,
           std::size_t out) const {
    const auto call_of = [](const ResidualLayer* layer, const PackedWeights* w, std::size_t bias) {
      if (!layer != !w) refuse("w: expected packed weights of each layer, and of no other");
      LayerCall call;
      if (!layer) return call;
      call.weights = packed_data(*w, layer->algorithm, layer->problem);
      call.epilogue = {reinterpret_cast<const float*>(bias), nullptr, layer->activation,
                       layer->slope, false};
      return call;
    };
    if (problem.depthwise.batch == 0) return;
    InvertedResidualCall call = {
        reinterpret_cast<const void*>(x),
        call_of(expansion ? &*expansion : nullptr, w_expansion, b_expansion),
        call_of(&depthwise, &w_depthwise, b_depthwise),
        call_of(projection ? &*projection : nullptr, w_projection, b_projection),
        reinterpret_cast<void*>(out),
        nullptr,
        omp_get_max_threads()};
    if (residual && !projection) refuse("residual: expected none without a projection");
    call.projection.epilogue.residual = reinterpret_cast<const void*>(residual);
    const InvertedResidualPass& kernel = pass();
    const long floats = kernel.scratch_floats(problem, call.threads);
    bool stands;
    {
      nb::gil_scoped_release release;
      call.scratch = scratch(floats);
      if (call.scratch) kernel.run(problem, call);
      stands = !call.scratch || guard_stands();
    }
    if (!call.scratch) refuse("scratch: no memory for " + std::to_string(floats * 4) + " bytes");
    if (!stands) {
      PyErr_SetString(PyExc_SystemError, ("bestof: a kernel wrote past its scratch for " +
                                          describe_problem(problem.depthwise))
                                             .c_str());
      throw nb::python_error();
    }
  }
};

}  // namespace

void bind_inverted_residual(nb::module_& m) {
  nb::class_<ResidualLayer>(m, "ResidualLayer");
  m.def("pointwise_layer", &pointwise);
  m.def("has_rows_of_pairs", [] { return kernels().inverted_residual_bf16 != nullptr; });
  m.def("depthwise_layer", [](const Problem& p, const std::string& activation, float slope) {
    return layer_of(p, "depthwise", activation, slope);
  });
  nb::class_<InvertedResidualPlan>(m, "InvertedResidualPlan")
      .def(nb::init<std::optional<ResidualLayer>, ResidualLayer, std::optional<ResidualLayer>>(),
           nb::arg("expansion").none(), nb::arg("depthwise"), nb::arg("projection").none())
      .def("run", &InvertedResidualPlan::run, nb::arg("x"), nb::arg("w_expansion").none(),
           nb::arg("b_expansion"), nb::arg("w_depthwise"), nb::arg("b_depthwise"),
           nb::arg("w_projection").none(), nb::arg("b_projection"), nb::arg("residual"),
           nb::arg("out"));
}

}  // namespace bestof
