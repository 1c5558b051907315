// One call of PyTorch's fused attention on the CPU, and what it looks like.
#pragma once
#include <cstdint>
#include <optional>
#include <tuple>

#include "cpp_kernel.h"
#include "known_calls.h"
#include "stable_abi.h"

namespace shim {

constexpr char ATTENTION[] = "_scaled_dot_product_flash_attention_for_cpu";

// The results, and the logsumexp of each query.
using Attended = std::tuple<Result, Result>;

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

  // Returns null if there is no mask.
  stable::Tensor mask() const {
    auto* tensor = const_cast<void**>(&optional_mask->tensor);
    return optional_mask->is_there ? reinterpret_cast<stable::Tensor>(tensor) : nullptr;
  }
  // Returns whether bestof may choose what computes this call: float32 tensors of four dimensions,
  // no dropout, a finite scale, and at least `least` multiply-adds of one of both products.
  bool is_worth(int64_t least) const;
  // Adds everything that a decision depends on; false if the call has another form.
  bool describe(Call& call) const;
};

}  // namespace shim
