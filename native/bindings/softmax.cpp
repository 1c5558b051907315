// Softmax for Python, on addresses that Python has checked.
#include "softmax/softmax.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/unique_ptr.h>
#include <omp.h>

#include <memory>
#include <string>

#include "bindings/module.h"
#include "bindings/runnable.h"

namespace nb = nanobind;

namespace bestof {
namespace {

void softmax_at(std::size_t x, std::size_t out, long outer, long size, long inner) {
  nb::gil_scoped_release release;
  kernels().softmax({outer, size, inner}, reinterpret_cast<const float*>(x),
                    reinterpret_cast<float*>(out), omp_get_max_threads());
}

class SoftmaxRunnable final : public Runnable {
 public:
  explicit SoftmaxRunnable(const SoftmaxProblem& problem) : problem_(problem) {}

  bool run_on(const void* const* operands, void* const* results, const void*) const override {
    if (isa_ != kernels().isa) return false;
    kernels().softmax(problem_, static_cast<const float*>(operands[0]),
                      static_cast<float*>(results[0]), omp_get_max_threads());
    return true;
  }

 private:
  SoftmaxProblem problem_;
  std::string isa_ = kernels().isa;
};

}  // namespace

void bind_softmax(nb::module_& m) {
  m.def("softmax_runnable", [](long outer, long size, long inner) -> std::unique_ptr<Runnable> {
    return std::make_unique<SoftmaxRunnable>(SoftmaxProblem{outer, size, inner});
  });
  m.def("softmax_at", &softmax_at);
}

}  // namespace bestof
