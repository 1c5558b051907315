// Activations of whole arrays for Python and for the PyTorch module.
#include "activation/activation.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <omp.h>

#include <string>

#include "bindings/module.h"
#include "bindings/problem.h"
#include "bindings/runnable.h"

namespace bestof {
namespace {

ActivationProblem problem_of(long count, const std::string& name, const std::string& dtype) {
  return {count, activation_of(name), element_of(dtype)};
}

}  // namespace

void bind_activation(nb::module_& m) {
  // x -> out.
  m.def("activation", [](long count, const std::string& name, const std::string& dtype) {
    return runnable([p = problem_of(count, name, dtype)](auto operands, auto results) {
      kernels().activation_forward(p, operands[0], results[0], omp_get_max_threads());
      return true;
    });
  });
  // gradient, x -> out.
  m.def("activation_backward", [](long count, const std::string& name, const std::string& dtype) {
    return runnable([p = problem_of(count, name, dtype)](auto operands, auto results) {
      kernels().activation_backward(p, operands[0], operands[1], results[0], omp_get_max_threads());
      return true;
    });
  });
}

}  // namespace bestof
