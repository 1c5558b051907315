// The gradients of group norm for Python, on addresses that Python has checked. 0 stands for null.
#include "norm/group_norm.h"

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

void backward_at(std::size_t gradient, std::size_t x, std::size_t mean, std::size_t rstd,
                 std::size_t scale, std::size_t of_x, std::size_t of_scale, std::size_t of_shift,
                 long images, long pixels, long channels, long groups) {
  const GroupNormProblem p = {images, pixels, channels, groups};
  nb::gil_scoped_release release;
  std::vector<float> scratch(group_norm_scratch(p));
  kernels().group_norm_backward(
      p, {from(gradient), from(x), from(mean), from(rstd), from(scale), to(of_x), to(of_scale),
          to(of_shift), scratch.data(), omp_get_max_threads()});
}

}  // namespace

void bind_group_norm(nb::module_& m) {
  m.def("group_norm_backward_at", &backward_at);
}

}  // namespace bestof
