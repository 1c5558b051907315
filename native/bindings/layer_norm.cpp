// Layer norm in training for Python, on addresses that Python has checked. 0 stands for null.
#include "norm/layer_norm.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/unique_ptr.h>
#include <omp.h>

#include <memory>
#include <new>
#include <string>
#include <vector>

#include "bindings/module.h"
#include "bindings/runnable.h"

namespace nb = nanobind;

namespace bestof {
namespace {

const float* from(std::size_t address) {
  return reinterpret_cast<const float*>(address);
}
float* to(std::size_t address) {
  return reinterpret_cast<float*>(address);
}

const float* at(const void* address) {
  return static_cast<const float*>(address);
}
float* at(void* address) {
  return static_cast<float*>(address);
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

// x, scale, shift -> y, mean, rstd.
class LayerNormRunnable final : public Runnable {
 public:
  explicit LayerNormRunnable(const LayerNormProblem& problem) : problem_(problem) {}

  bool run_on(const void* const* operands, void* const* results, const void*) const override {
    if (isa_ != kernels().isa) return false;
    kernels().layer_norm(problem_,
                         {at(operands[0]), at(operands[1]), at(operands[2]), at(results[0]),
                          at(results[1]), at(results[2]), omp_get_max_threads()});
    return true;
  }

 private:
  LayerNormProblem problem_;
  std::string isa_ = kernels().isa;
};

// gradient, x, mean, rstd, scale, shift -> the gradients of x, scale and shift.
class LayerNormBackwardRunnable final : public Runnable {
 public:
  explicit LayerNormBackwardRunnable(const LayerNormProblem& problem) : problem_(problem) {}

  bool run_on(const void* const* operands, void* const* results, const void*) const override {
    if (isa_ != kernels().isa) return false;
    const int threads = omp_get_max_threads();
    const std::unique_ptr<float[]> scratch(new (std::nothrow) float[threads * 2 * problem_.size]());
    if (scratch == nullptr) return false;
    kernels().layer_norm_backward(
        problem_,
        {at(operands[0]), at(operands[1]), at(operands[2]), at(operands[3]), at(operands[4]),
         at(results[0]), at(results[1]), at(results[2]), scratch.get(), threads});
    return true;
  }

 private:
  LayerNormProblem problem_;
  std::string isa_ = kernels().isa;
};

}  // namespace

void bind_layer_norm(nb::module_& m) {
  m.def("layer_norm_runnable",
        [](long rows, long size, double epsilon, bool is_backward) -> std::unique_ptr<Runnable> {
          const LayerNormProblem problem = {rows, size, epsilon};
          if (is_backward) return std::make_unique<LayerNormBackwardRunnable>(problem);
          return std::make_unique<LayerNormRunnable>(problem);
        });
  m.def("layer_norm_at", &forward_at);
  m.def("layer_norm_backward_at", &backward_at);
}

}  // namespace bestof
