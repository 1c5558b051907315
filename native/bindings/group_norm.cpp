// The gradients of group norm for Python, on addresses that Python has checked. 0 stands for null.
#include "norm/group_norm.h"

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

// gradient, x, mean, rstd, scale -> the gradients of x, scale and shift.
class GroupNormBackwardRunnable final : public Runnable {
 public:
  explicit GroupNormBackwardRunnable(const GroupNormProblem& problem) : problem_(problem) {}

  bool run_on(const void* const* operands, void* const* results, const void*) const override {
    if (isa_ != kernels().isa) return false;
    const std::unique_ptr<float[]> scratch(
        new (std::nothrow) float[group_norm_scratch(problem_)]());
    if (scratch == nullptr) return false;
    kernels().group_norm_backward(
        problem_,
        {at(operands[0]), at(operands[1]), at(operands[2]), at(operands[3]), at(operands[4]),
         at(results[0]), at(results[1]), at(results[2]), scratch.get(), omp_get_max_threads()});
    return true;
  }

 private:
  GroupNormProblem problem_;
  std::string isa_ = kernels().isa;
};

}  // namespace

void bind_group_norm(nb::module_& m) {
  m.def("group_norm_backward_runnable",
        [](long images, long pixels, long channels, long groups) -> std::unique_ptr<Runnable> {
          return std::make_unique<GroupNormBackwardRunnable>(
              GroupNormProblem{images, pixels, channels, groups});
        });
  m.def("group_norm_backward_at", &backward_at);
}

}  // namespace bestof
