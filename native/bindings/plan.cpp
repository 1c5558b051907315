// Convolutions with a fixed problem and algorithm, for Python and for the PyTorch module.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <omp.h>

#include <string>

#include "bindings/attention.h"
#include "bindings/c_calls.h"
#include "bindings/execute.h"
#include "bindings/module.h"
#include "bindings/packed_weights.h"
#include "bindings/product.h"

namespace bestof {
namespace {

// One problem and algorithm, checked when the plan is made. A run takes addresses, and neither
// copies nor checks them.
struct Plan {
  Problem problem;
  Direction direction;
  const Algorithm* row;
  const Pass* pass;
  std::string algorithm, isa;
  Activation activation;
  float slope;
  bool pooled;

  Plan(const Problem& p, const std::string& direction_name, const std::string& algorithm_name,
       const std::string& activation_name, float slope_below, bool pool)
      : problem(p),
        direction(direction_of(direction_name)),
        row(&find_algorithm(algorithm_name, direction, p)),
        pass(&pass_of(*row, direction)),
        algorithm(algorithm_name),
        isa(kernels().isa),
        activation(activation_of(activation_name)),
        slope(slope_below),
        pooled(pool) {
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

  bool takes(const PackedWeights& w) const {
    return isa == w.isa && w.algorithm == algorithm && w.shape == w_shape(problem) &&
           w.groups == problem.groups;
  }

  void check_residual(std::size_t residual) const {
    if (pooled && residual) refuse("residual: expected none where results are pooled");
  }

  void run(std::size_t first, std::size_t second, std::size_t out, std::size_t bias,
           std::size_t residual) const {
    check_residual(residual);
    const Epilogue epilogue = {reinterpret_cast<const float*>(bias),
                               reinterpret_cast<const void*>(residual), activation, slope, pooled};
    execute(*pass, direction, problem,
            {reinterpret_cast<const void*>(first), reinterpret_cast<const void*>(second),
             reinterpret_cast<void*>(out), epilogue, nullptr, omp_get_max_threads()},
            pass->pack != nullptr);
  }

  void run_packed(std::size_t first, const PackedWeights& w, std::size_t out, std::size_t bias,
                  std::size_t residual) const {
    check_residual(residual);
    const Epilogue epilogue = {reinterpret_cast<const float*>(bias),
                               reinterpret_cast<const void*>(residual), activation, slope, pooled};
    if (direction != Direction::kForward)
      refuse("w: expected an address; packed weights serve the forward pass only");
    if (!takes(w)) {
      refuse("w: expected weights packed for " + algorithm + " on " + isa + " of shape " +
             describe(w_shape(problem)) + "; got some for " + w.algorithm + " on " + w.isa +
             " of shape " + describe(w.shape));
    }
    execute(*pass, direction, problem,
            {reinterpret_cast<const void*>(first), w.memory.get(), reinterpret_cast<void*>(out),
             epilogue, nullptr, omp_get_max_threads()},
            false);
  }
};

bool convolve(const void* address, const float* x, const float* w, const void* packed,
              const float* bias, float* y) {
  const Plan& plan = *static_cast<const Plan*>(address);
  const auto* kept = static_cast<const PackedWeights*>(packed);
  if (plan.direction != Direction::kForward || plan.isa != kernels().isa ||
      (kept && !plan.takes(*kept)))
    return false;
  const Epilogue epilogue = {bias, nullptr, plan.activation, plan.slope, plan.pooled};
  const Call call = {x, kept ? kept->memory.get() : w, y, epilogue, nullptr, omp_get_max_threads()};
  return compute(*plan.pass, plan.direction, plan.problem, call, !kept && plan.pass->pack) ==
         Outcome::kDone;
}

void turn(const float* x, long images, long rows, long columns, float* y) {
  const long matrix = rows * columns;
  const JoinedAxes axes = {3, {images, columns, rows}, {matrix, 1, columns}, {matrix, rows, 1}};
  kernels().transpose_blocked(x, axes, y, omp_get_max_threads());
}

unsigned long long fingerprint(const void* memory, long bytes) {
  return kernels().fingerprint(memory, bytes, omp_get_max_threads());
}

constexpr CCalls kCalls = {convolve,         turn,           fingerprint,
                           multiply_by_plan, attend_by_plan, attend_backward_by_plan};

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
                    float, bool>())
      .def("run", &Plan::run)
      .def("run_packed", &Plan::run_packed)
      .def_prop_ro("address", [](const Plan& plan) { return address_of(&plan); });
  m.def("fingerprint", &fingerprint_of);
  m.def("c_calls", [] { return address_of(&kCalls); });
}

}  // namespace bestof
