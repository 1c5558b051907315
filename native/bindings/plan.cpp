// Convolutions with a fixed problem and algorithm, for Python and for the PyTorch module.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <omp.h>

#include <string>
#include <vector>

#include "bindings/c_calls.h"
#include "bindings/execute.h"
#include "bindings/module.h"
#include "bindings/packed_weights.h"
#include "bindings/product.h"
#include "bindings/runnable.h"

namespace bestof {
namespace {

// One problem and algorithm, checked when the plan is made. A run takes addresses, and neither
// copies nor checks them.
struct Plan final : Runnable {
  Problem problem;
  Direction direction;
  const Algorithm* row;
  const Pass* pass;
  std::string algorithm, isa;
  Activation activation;
  float slope;
  bool pooled;
  bool looks;
  long pitch;

  Plan(const Problem& p, const std::string& direction_name, const std::string& algorithm_name,
       const std::string& activation_name, float slope_below, bool pool, bool look,
       long pixel_pitch)
      : problem(p),
        direction(direction_of(direction_name)),
        row(&find_algorithm(algorithm_name, direction, p)),
        pass(&pass_of(*row, direction)),
        algorithm(algorithm_name),
        isa(kernels().isa),
        activation(activation_of(activation_name)),
        slope(slope_below),
        pooled(pool),
        looks(look && row->transforms),
        pitch(pixel_pitch) {
    if (pitch) check_pitch();
    if (!pooled) return;
    if (!row->pools || direction != Direction::kForward)
      refuse("pool: expected an algorithm that pools what it computes; got " + algorithm_name);
    if (may_fall(activation, slope))
      refuse("pool: expected an activation that never falls; got " + activation_name);
    if (p.out_height < 2 || p.out_width < 2) {
      refuse("pool: expected 2x2 results at least; got " + std::to_string(p.out_height) + "x" +
             std::to_string(p.out_width));
    }
  }

  void check_pitch() const {
    expect_pitch(pitch, problem.out_channels);
    if (!row->pitches || direction != Direction::kForward)
      refuse("pitch: expected an algorithm that writes pixels apart; got " + algorithm);
    if (pooled) refuse("pitch: expected none where results are pooled");
  }

  // Returns whether the plan refuses the operands of a call: an element stands out, and the
  // algorithm would carry its rounding to results that do not read it. Packed weights and those of
  // the forward pass are not looked at: each of their elements reaches all results of a filter.
  bool refuses(const void* first, const void* second) const {
    if (!looks || problem.batch == 0) return false;
    const Problem& p = problem;
    const auto of_input = [&](const void* x) {
      return kernels().outliers(x, p.element, p.batch, p.in_height, p.in_width, p.in_channels,
                                omp_get_max_threads());
    };
    constexpr int kBoth = kInImage | kInBatch;
    if (direction == Direction::kForward) return of_input(first) == kBoth;
    int found = kernels().outliers(first, p.element, p.batch, p.out_height, p.out_width,
                                   p.out_channels, omp_get_max_threads());
    if (found == kBoth || direction == Direction::kBackwardInput) return found == kBoth;
    // Of 7 taps, errors in a batch of images that differ were up to 3.8 times the promised one.
    if (p.kernel_height > 5 || p.kernel_width > 5) found |= kInImage;
    return (found | of_input(second)) == kBoth;
  }

  bool refuses(std::size_t first, std::size_t second) const {
    nb::gil_scoped_release release;
    return refuses(reinterpret_cast<const void*>(first), reinterpret_cast<const void*>(second));
  }

  bool takes(const PackedWeights& w) const {
    return isa == w.isa && w.algorithm == algorithm && w.shape == w_shape(problem) &&
           w.groups == problem.groups;
  }

  void check_residual(std::size_t residual) const {
    if (pooled && residual) refuse("residual: expected none where results are pooled");
    if (pitch && residual) refuse("residual: expected none where pixels of results lie apart");
  }

  void check_packed(const PackedWeights& w, std::size_t residual) const {
    check_residual(residual);
    if (direction != Direction::kForward)
      refuse("w: expected an address; packed weights serve the forward pass only");
    if (!takes(w)) {
      refuse("w: expected weights packed for " + algorithm + " on " + isa + " of shape " +
             describe(w_shape(problem)) + "; got some for " + w.algorithm + " on " + w.isa +
             " of shape " + describe(w.shape));
    }
  }

  // `second` is packed already, or `pack` tells to pack it. Returns false, and writes nothing, if
  // the plan refuses the operands.
  bool run_checked(std::size_t first, const void* second, std::size_t out, std::size_t bias,
                   std::size_t residual, bool pack) const {
    if (looks && refuses(first, reinterpret_cast<std::size_t>(second))) return false;
    const Epilogue epilogue = {reinterpret_cast<const float*>(bias),
                               reinterpret_cast<const void*>(residual),
                               activation,
                               slope,
                               pooled,
                               pitch};
    execute(*pass, direction, problem,
            {reinterpret_cast<const void*>(first), second, reinterpret_cast<void*>(out), epilogue,
             nullptr, omp_get_max_threads()},
            pack);
    return true;
  }

  bool run(std::size_t first, std::size_t second, std::size_t out, std::size_t bias,
           std::size_t residual) const {
    check_residual(residual);
    return run_checked(first, reinterpret_cast<const void*>(second), out, bias, residual,
                       pass->pack != nullptr);
  }

  bool run_packed(std::size_t first, const PackedWeights& w, std::size_t out, std::size_t bias,
                  std::size_t residual) const {
    check_packed(w, residual);
    return run_checked(first, w.memory.get(), out, bias, residual, false);
  }

  bool run_on(const void* const* operands, void* const* results,
              const void* packed) const override {
    const void *x = operands[0], *w = operands[1];
    const auto* kept = static_cast<const PackedWeights*>(packed);
    if (direction != Direction::kForward || isa != kernels().isa || (kept && !takes(*kept)) ||
        refuses(x, w))
      return false;
    const Epilogue epilogue = {
        static_cast<const float*>(operands[2]), nullptr, activation, slope, pooled, pitch};
    const Call call = {x,       kept ? kept->memory.get() : w, results[0], epilogue,
                       nullptr, omp_get_max_threads()};
    return compute(*pass, direction, problem, call, !kept && pass->pack) == Outcome::kDone;
  }
};

// A plan with packed weights on fixed addresses, checked once. Python keeps the plan and the
// weights.
struct BoundPlan {
  const Plan& plan;
  const PackedWeights& w;
  std::size_t first, out, bias, residual;

  BoundPlan(const Plan& one, const PackedWeights& weights, std::size_t x, std::size_t y,
            std::size_t offsets, std::size_t added)
      : plan(one), w(weights), first(x), out(y), bias(offsets), residual(added) {
    plan.check_packed(w, residual);
  }

  bool run() const { return plan.run_checked(first, w.memory.get(), out, bias, residual, false); }
};

bool run(const void* plan, const void* const* operands, void* const* results, const void* packed) {
  return static_cast<const Runnable*>(plan)->run_on(operands, results, packed);
}

void turn(const float* x, long images, long rows, long columns, float* y) {
  const long matrix = rows * columns;
  const JoinedAxes axes = {3, {images, columns, rows}, {matrix, 1, columns}, {matrix, rows, 1}};
  kernels().transpose_blocked(x, axes, y, omp_get_max_threads());
}

unsigned long long fingerprint(const void* memory, long bytes) {
  return kernels().fingerprint(memory, bytes, omp_get_max_threads());
}

// Runs a plan on addresses, for Python, which has checked them. 0 stands for null.
void run_on(const Runnable& plan, const std::vector<std::size_t>& operands,
            const std::vector<std::size_t>& results) {
  constexpr std::size_t kMost = 8;
  if (operands.size() > kMost || results.size() > kMost)
    refuse("addresses: expected at most 8 operands and 8 results");
  const void* read[kMost] = {};
  void* written[kMost] = {};
  for (std::size_t i = 0; i < operands.size(); ++i)
    read[i] = reinterpret_cast<const void*>(operands[i]);
  for (std::size_t i = 0; i < results.size(); ++i) written[i] = reinterpret_cast<void*>(results[i]);
  bool done;
  {
    nb::gil_scoped_release release;
    done = plan.run_on(read, written, nullptr);
  }
  if (!done) refuse("scratch: memory is short");
}

constexpr CCalls kCalls = {run, turn, fingerprint};

std::size_t address_of(const void* object) {
  return reinterpret_cast<std::size_t>(object);
}

unsigned long long fingerprint_of(std::size_t memory, long bytes) {
  nb::gil_scoped_release release;
  return fingerprint(reinterpret_cast<const void*>(memory), bytes);
}

}  // namespace

void bind_plan(nb::module_& m) {
  nb::class_<Plan>(m, "Plan")
      .def(nb::init<const Problem&, const std::string&, const std::string&, const std::string&,
                    float, bool, bool, long>())
      .def("run", &Plan::run)
      .def("run_packed", &Plan::run_packed)
      .def_prop_ro("address", [](const Plan& plan) { return plan.address(); });
  nb::class_<BoundPlan>(m, "BoundPlan")
      .def(nb::init<const Plan&, const PackedWeights&, std::size_t, std::size_t, std::size_t,
                    std::size_t>(),
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def("run", &BoundPlan::run);
  nb::class_<Runnable>(m, "Runnable")
      .def("run", &run_on)
      .def_prop_ro("address", &Runnable::address);
  m.def("fingerprint", &fingerprint_of);
  m.def("c_calls", [] { return address_of(&kCalls); });
}

}  // namespace bestof
