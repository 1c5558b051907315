// Activations of whole arrays for Python, on addresses that Python has checked.
#include "activation/activation.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <omp.h>

#include <string>

#include "bindings/module.h"
#include "bindings/problem.h"

namespace bestof {
namespace {

ActivationProblem problem_of(long count, const std::string& name, bool halves) {
  return {count, activation_of(name), halves ? Element::kBfloat16 : Element::kFloat32};
}

void forward_at(std::size_t x, std::size_t out, long count, const std::string& name, bool halves) {
  const ActivationProblem p = problem_of(count, name, halves);
  nb::gil_scoped_release release;
  kernels().activation_forward(p, reinterpret_cast<const void*>(x), reinterpret_cast<void*>(out),
                               omp_get_max_threads());
}

void backward_at(std::size_t gradient, std::size_t x, std::size_t out, long count,
                 const std::string& name, bool halves) {
  const ActivationProblem p = problem_of(count, name, halves);
  nb::gil_scoped_release release;
  kernels().activation_backward(p, reinterpret_cast<const void*>(gradient),
                                reinterpret_cast<const void*>(x), reinterpret_cast<void*>(out),
                                omp_get_max_threads());
}

}  // namespace

void bind_activation(nb::module_& m) {
  m.def("activation_at", &forward_at);
  m.def("activation_backward_at", &backward_at);
}

}  // namespace bestof
