// The gradients of group norm for Python and for the PyTorch module.
#include "norm/group_norm.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/unique_ptr.h>
#include <omp.h>

#include <memory>
#include <new>

#include "bindings/module.h"
#include "bindings/runnable.h"

namespace bestof {

void bind_group_norm(nanobind::module_& m) {
  // gradient, x, mean, rstd, scale -> the gradients of x, scale and shift.
  m.def("group_norm_backward", [](long images, long pixels, long channels, long groups) {
    return runnable([p = GroupNormProblem{images, pixels, channels, groups}](auto x, auto y) {
      const std::unique_ptr<float[]> scratch(new (std::nothrow) float[group_norm_scratch(p)]());
      if (scratch == nullptr) return false;
      kernels().group_norm_backward(
          p, {floats(x[0]), floats(x[1]), floats(x[2]), floats(x[3]), floats(x[4]), floats(y[0]),
              floats(y[1]), floats(y[2]), scratch.get(), omp_get_max_threads()});
      return true;
    });
  });
}

}  // namespace bestof
