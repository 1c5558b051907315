// Layer norm in training for Python and for the PyTorch module.
#include "norm/layer_norm.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/unique_ptr.h>
#include <omp.h>

#include <memory>
#include <new>

#include "bindings/module.h"
#include "bindings/runnable.h"

namespace bestof {

void bind_layer_norm(nanobind::module_& m) {
  // x, scale, shift -> y, mean, rstd.
  m.def("layer_norm", [](long rows, long size, double epsilon) {
    return runnable([p = LayerNormProblem{rows, size, epsilon}](auto x, auto y) {
      kernels().layer_norm(p, {floats(x[0]), floats(x[1]), floats(x[2]), floats(y[0]), floats(y[1]),
                               floats(y[2]), omp_get_max_threads()});
      return true;
    });
  });
  // gradient, x, mean, rstd, scale -> the gradients of x, scale and shift.
  m.def("layer_norm_backward", [](long rows, long size) {
    return runnable([p = LayerNormProblem{rows, size, 0.0}](auto x, auto y) {
      const int threads = omp_get_max_threads();
      const long count = y[1] || y[2] ? threads * 2 * p.size : 0;
      const std::unique_ptr<float[]> scratch(new (std::nothrow) float[count]());
      if (scratch == nullptr) return false;
      kernels().layer_norm_backward(
          p, {floats(x[0]), floats(x[1]), floats(x[2]), floats(x[3]), floats(x[4]), floats(y[0]),
              floats(y[1]), floats(y[2]), scratch.get(), threads});
      return true;
    });
  });
}

}  // namespace bestof
