// Activations of whole arrays for Python, on addresses that Python has checked.
#include "activation/activation.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <omp.h>

#include <memory>
#include <string>

#include "bindings/module.h"
#include "bindings/problem.h"
#include "bindings/runnable.h"

namespace bestof {
namespace {

ActivationProblem problem_of(long count, const std::string& name, const std::string& dtype) {
  return {count, activation_of(name), element_of(dtype)};
}

void forward_at(std::size_t x, std::size_t out, long count, const std::string& name,
                const std::string& dtype) {
  const ActivationProblem p = problem_of(count, name, dtype);
  nb::gil_scoped_release release;
  kernels().activation_forward(p, reinterpret_cast<const void*>(x), reinterpret_cast<void*>(out),
                               omp_get_max_threads());
}

void backward_at(std::size_t gradient, std::size_t x, std::size_t out, long count,
                 const std::string& name, const std::string& dtype) {
  const ActivationProblem p = problem_of(count, name, dtype);
  nb::gil_scoped_release release;
  kernels().activation_backward(p, reinterpret_cast<const void*>(gradient),
                                reinterpret_cast<const void*>(x), reinterpret_cast<void*>(out),
                                omp_get_max_threads());
}

// An activation or its gradient: x -> out, or gradient, x -> out.
class ActivationRunnable final : public Runnable {
 public:
  ActivationRunnable(const ActivationProblem& problem, bool is_backward)
      : problem_(problem), is_backward_(is_backward) {}

  bool run_on(const void* const* operands, void* const* results, const void*) const override {
    if (isa_ != kernels().isa) return false;
    const int threads = omp_get_max_threads();
    if (is_backward_)
      kernels().activation_backward(problem_, operands[0], operands[1], results[0], threads);
    else
      kernels().activation_forward(problem_, operands[0], results[0], threads);
    return true;
  }

 private:
  ActivationProblem problem_;
  std::string isa_ = kernels().isa;
  bool is_backward_;
};

}  // namespace

void bind_activation(nb::module_& m) {
  m.def("activation_runnable",
        [](long count, const std::string& name, const std::string& dtype,
           bool is_backward) -> std::unique_ptr<Runnable> {
          return std::make_unique<ActivationRunnable>(problem_of(count, name, dtype), is_backward);
        });
  m.def("activation_at", &forward_at);
  m.def("activation_backward_at", &backward_at);
}

}  // namespace bestof
