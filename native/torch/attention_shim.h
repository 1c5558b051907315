// The kernels for PyTorch's fused attention on the CPU.
#pragma once
#include "attention_call.h"
#include "native_attention.h"
#include "shim.h"

namespace shim {

enum AttentionPass { ATTENTION_FORWARD, ATTENTION_BACKWARD, ATTENTION_PASSES };

// Answers one pass. Small calls, and calls that bestof does not choose for, go straight to
// PyTorch's kernel. Python answers calls that are not decided: (tensors, whether the last one is a
// mask, causal, scale or None) -> the results. The tensors are q, k and v, or those of the backward
// pass: the gradient of the results, q, k, v, the results and their logsumexp.
class AttentionShim final : public Shim {
 public:
  // `original` is PyTorch's kernel; `kept` keeps it. `least` is the number of multiply-adds of one
  // product from which on attention is chosen for. The shim takes the references.
  AttentionShim(AttentionPass pass, Conversions conversions, PyObject* answer, PyObject* kept,
                const KernelFunction& original, int64_t least, PyObject* first_only)
      : Shim(conversions, first_only, 4096),
        pass_(pass),
        answer_(answer),
        kept_(kept),
        original_(original),
        least_(least) {}
  ~AttentionShim() override;

  bool put_in() override;
  void take_out() override;

  // Computes a call. Returns false, without results, if PyTorch's kernel is to compute it.
  bool attend(const AttentionCall& call, stable::Tensor (&results)[MOST_ATTENTION_RESULTS]);
  const KernelFunction& original() const { return original_; }
  // Counts the questions that Python was asked.
  uint64_t asked() const { return asked_.load(std::memory_order_relaxed); }

 private:
  AttentionPass pass_;
  PyObject *answer_, *kept_;
  KernelFunction original_;
  int64_t least_;
  std::atomic<uint64_t> asked_{0};
};

}  // namespace shim
