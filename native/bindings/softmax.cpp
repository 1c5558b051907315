// Softmax for Python, on addresses that Python has checked.
#include "softmax/softmax.h"

#include <nanobind/nanobind.h>
#include <omp.h>

#include "bindings/module.h"

namespace nb = nanobind;

namespace bestof {
namespace {

void softmax_at(std::size_t x, std::size_t out, long outer, long size, long inner) {
  nb::gil_scoped_release release;
  kernels().softmax({outer, size, inner}, reinterpret_cast<const float*>(x),
                    reinterpret_cast<float*>(out), omp_get_max_threads());
}

}  // namespace

void bind_softmax(nb::module_& m) {
  m.def("softmax_at", &softmax_at);
}

}  // namespace bestof
