// What every plan offers to callers without Python.
#pragma once
#include <cstddef>
#include <memory>
#include <utility>

namespace bestof {

class Runnable {
 public:
  virtual ~Runnable() = default;

  // Computes the results of operands at these addresses, with the strides and dtypes of the plan.
  // Operands that are absent are null. `packed` is null, or the address of what was packed from an
  // operand, which is then not read. Returns false, and writes nothing, if it was packed for
  // another plan, if the plan is of another instruction set than is in use, if the plan looks for
  // elements that stand out and finds one, or if memory is short.
  //
  // operands -> results:
  //   convolution, forward: x, w, bias -> y; packs w (PackedWeights)
  //   product: bias, a, b -> c; packs b (PackedMatrix)
  //   attention: q, k, v, mask -> out, logsumexp
  //   its gradients: gradient of out, q, k, v, out, logsumexp, mask -> gradients of q, k, v
  //   others: see the files that bind them
  virtual bool run_on(const void* const* operands, void* const* results,
                      const void* packed) const = 0;

  // Returns the address that CCalls::run takes.
  std::size_t address() const { return reinterpret_cast<std::size_t>(this); }
};

// Returns a plan that calls `run` with the operands and the results. It packs nothing, and looks
// the kernel up at each call, so it serves every instruction set. `run` returns false if memory is
// short.
template <class Run>
std::unique_ptr<Runnable> runnable(Run run) {
  struct Function final : Runnable {
    Run run;
    explicit Function(Run one) : run(std::move(one)) {}
    bool run_on(const void* const* operands, void* const* results, const void*) const override {
      return run(operands, results);
    }
  };
  return std::make_unique<Function>(std::move(run));
}

inline const float* floats(const void* address) {
  return static_cast<const float*>(address);
}
inline float* floats(void* address) {
  return static_cast<float*>(address);
}

}  // namespace bestof
