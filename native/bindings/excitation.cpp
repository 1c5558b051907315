// Squeeze-and-excitation for Python.
#include "excitation/excitation.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <omp.h>

#include <string>
#include <vector>

#include "bindings/arena.h"
#include "bindings/array.h"
#include "bindings/module.h"
#include "bindings/problem.h"
#include "bindings/runnable.h"

namespace bestof {
namespace {

// shape: images, pixels, channels, hidden channels.
ExcitationProblem problem_of(const std::vector<long>& shape, bool hard, const std::string& inner,
                             float inner_slope, const std::string& last, float last_slope) {
  if (shape.size() != 4) refuse("shape: expected 4 extents; got " + describe(shape));
  double elements = 1.0;
  for (long extent : shape) {
    if (extent < 1 || extent >= 1L << 31)
      refuse("shape: expected extents from 1 to 2^31 - 1; got " + describe(shape));
    elements *= static_cast<double>(extent);
  }
  if (elements > static_cast<double>(1L << 50)) refuse("shape: too large: " + describe(shape));
  return {
      shape[0],    shape[1],  shape[2], shape[3], hard, activation_of(inner), activation_of(last),
      inner_slope, last_slope};
}

}  // namespace

void bind_excitation(nb::module_& m) {
  // x, squeeze, its bias, excite, its bias, residual -> y. Biases and the residual may be absent.
  m.def("excitation", [](const std::vector<long>& shape, bool hard, const std::string& inner,
                         float inner_slope, const std::string& last, float last_slope) {
    return runnable([p = problem_of(shape, hard, inner, inner_slope, last, last_slope)](
                        auto operands, auto results) {
      const int threads = omp_get_max_threads();
      float* memory = scratch(excitation_floats(p, threads));
      if (!memory) return false;
      kernels().excite(
          p, {floats(operands[0]), floats(operands[1]), floats(operands[2]), floats(operands[3]),
              floats(operands[4]), floats(operands[5]), floats(results[0]), memory, threads});
      return guard_stands();
    });
  });
}

}  // namespace bestof
