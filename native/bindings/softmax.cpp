// Softmax for Python and for the PyTorch module.
#include "softmax/softmax.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/unique_ptr.h>
#include <omp.h>

#include "bindings/module.h"
#include "bindings/runnable.h"

namespace bestof {

void bind_softmax(nanobind::module_& m) {
  // x -> out.
  m.def("softmax", [](long outer, long size, long inner) {
    return runnable([p = SoftmaxProblem{outer, size, inner}](auto operands, auto results) {
      kernels().softmax(p, floats(operands[0]), floats(results[0]), omp_get_max_threads());
      return true;
    });
  });
}

}  // namespace bestof
