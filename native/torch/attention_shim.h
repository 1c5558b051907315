// The kernel for PyTorch's fused attention on the CPU.
#pragma once
#include "attention_call.h"
#include "native_attention.h"
#include "shim.h"

namespace shim {

// Small calls, and calls that bestof does not choose for, go straight to PyTorch's kernel. Python
// answers calls that are not decided: (q, k, v, causal, mask or None, scale or None) -> two
// tensors.
class AttentionShim final : public Shim {
 public:
  // `original` is PyTorch's kernel; `kept` keeps it. `least` is the number of multiply-adds from
  // which on attention is chosen for. The shim takes the references.
  AttentionShim(Conversions conversions, PyObject* answer, PyObject* kept,
                const KernelFunction& original, int64_t least, PyObject* first_only)
      : Shim(conversions, first_only, 4096),
        answer_(answer),
        kept_(kept),
        original_(original),
        least_(least) {}
  ~AttentionShim() override;

  bool put_in() override;
  void take_out() override;

  Attended attend(const AttentionCall& call);
  // Calls PyTorch's kernel with the arguments as they are.
  Attended by_pytorch(const AttentionCall& call) const;
  const KernelFunction& original() const { return original_; }
  // Counts the questions that Python was asked.
  uint64_t asked() const { return asked_.load(std::memory_order_relaxed); }

 private:
  PyObject *answer_, *kept_;
  KernelFunction original_;
  int64_t least_;
  std::atomic<uint64_t> asked_{0};
};

}  // namespace shim
