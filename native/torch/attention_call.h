// One call of PyTorch's fused attention on the CPU, of its forward or its backward pass, and what
// it looks like.
#pragma once
#include <cstdint>
#include <optional>
#include <tuple>

#include "cpp_kernel.h"
#include "known_calls.h"
#include "stable_abi.h"

namespace shim {

// The results, and the logsumexp of each query.
using Attended = std::tuple<Result, Result>;
// The gradients of q, k and v.
using AttentionGradients = std::tuple<Result, Result, Result>;
// Results of either pass.
constexpr int MOST_ATTENTION_RESULTS = 3;

// An optional tensor of PyTorch: the tensor, and whether it is there.
struct OptionalTensor {
  void* tensor;
  bool is_there;
};

// The arguments of a call, which PyTorch owns.
struct AttentionCall {
  uint64_t keys;  // the dispatch keys
  stable::Tensor q, k, v;
  double dropout;
  bool causal;
  const OptionalTensor* optional_mask;
  std::optional<double> scale;
  // Of the backward pass alone: the gradient of the results, the results, and their logsumexp.
  stable::Tensor gradient = nullptr, out = nullptr, logsumexp = nullptr;

  bool is_backward() const { return gradient != nullptr; }
  // Returns null if there is no mask.
  stable::Tensor mask() const {
    auto* tensor = const_cast<void**>(&optional_mask->tensor);
    return optional_mask->is_there ? reinterpret_cast<stable::Tensor>(tensor) : nullptr;
  }
  // Returns whether bestof may choose what computes this call: tensors of four dimensions, of
  // float32 or bfloat16, no dropout, a finite scale, and at least `least` multiply-adds of one of
  // both products.
  bool is_worth(int64_t least) const;
  // Adds everything that a decision depends on; false if the call has another form.
  bool describe(Call& call) const;
};

}  // namespace shim
