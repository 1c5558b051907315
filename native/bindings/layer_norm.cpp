// Layer norm in training for Python, on addresses that Python has checked. 0 stands for null.
#include "norm/layer_norm.h"

#include <nanobind/nanobind.h>
#include <omp.h>

#include <vector>

#include "bindings/module.h"

namespace nb = nanobind;

namespace bestof {
namespace {

const float* from(std::size_t address) {
  return reinterpret_cast<const float*>(address);
}
float* to(std::size_t address) {
  return reinterpret_cast<float*>(address);
}

void forward_at(std::size_t x, std::size_t scale, std::size_t shift, std::size_t y,
                std::size_t mean, std::size_t rstd, long rows, long size, double epsilon) {
  nb::gil_scoped_release release;
  kernels().layer_norm({rows, size, epsilon}, {from(x), from(scale), from(shift), to(y), to(mean),
                                               to(rstd), omp_get_max_threads()});
}

void backward_at(std::size_t gradient, std::size_t x, std::size_t mean, std::size_t rstd,
                 std::size_t scale, std::size_t of_x, std::size_t of_scale, std::size_t of_shift,
                 long rows, long size) {
  const int threads = omp_get_max_threads();
  nb::gil_scoped_release release;
  std::vector<float> scratch(of_scale || of_shift ? threads * 2 * size : 0);
  kernels().layer_norm_backward(
      {rows, size, 0.0}, {from(gradient), from(x), from(mean), from(rstd), from(scale), to(of_x),
                          to(of_scale), to(of_shift), scratch.data(), threads});
}

}  // namespace

void bind_layer_norm(nb::module_& m) {
  m.def("layer_norm_at", &forward_at);
  m.def("layer_norm_backward_at", &backward_at);
}

}  // namespace bestof
