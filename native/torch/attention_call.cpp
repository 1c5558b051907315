#include "attention_call.h"

#include <cmath>
#include <cstring>

namespace shim {

namespace {

constexpr int64_t DIMENSIONS = 4;

// Returns the sizes of a tensor of four dimensions; null for others.
const int64_t* sizes_of(stable::Tensor tensor) {
  int64_t dimensions = 0, *sizes = nullptr;
  if (stable::aoti_torch_get_dim(tensor, &dimensions) != 0 || dimensions != DIMENSIONS ||
      stable::aoti_torch_get_sizes(tensor, &sizes) != 0)
    return nullptr;
  return sizes;
}

// Adds dtype, dimensions, sizes and strides of a tensor of four dimensions at most.
bool add(stable::Tensor tensor, Call& call) {
  int32_t dtype = 0;
  int64_t dimensions = 0, *sizes = nullptr, *strides = nullptr;
  if (stable::aoti_torch_get_dim(tensor, &dimensions) != 0 || dimensions > DIMENSIONS ||
      stable::aoti_torch_get_dtype(tensor, &dtype) != 0 ||
      stable::aoti_torch_get_sizes(tensor, &sizes) != 0 ||
      stable::aoti_torch_get_strides(tensor, &strides) != 0)
    return false;
  call.add(dtype * (DIMENSIONS + 1) + dimensions);
  call.add(sizes, static_cast<int>(dimensions));
  call.add(strides, static_cast<int>(dimensions));
  return true;
}

}  // namespace

bool AttentionCall::is_worth(int64_t least) const {
  const int64_t *queries = sizes_of(q), *keys = sizes_of(k);
  if (queries == nullptr || keys == nullptr || dropout != 0.0) return false;
  double work = static_cast<double>(keys[2]);  // sizes of expanded tensors may have any product
  for (int64_t axis = 0; axis < DIMENSIONS; ++axis) work *= static_cast<double>(queries[axis]);
  int32_t dtype = 0;
  if (stable::aoti_torch_get_dtype(q, &dtype) != 0) return false;
  return (dtype == stable::FLOAT32 || dtype == stable::BFLOAT16) &&
         work >= static_cast<double>(least) && (!scale.has_value() || std::isfinite(*scale));
}

bool AttentionCall::describe(Call& call) const {
  uint32_t threads = 0;
  stable::torch_get_num_threads(&threads);
  int64_t factor = 0;
  if (scale.has_value()) std::memcpy(&factor, &*scale, sizeof(factor));
  const int64_t words[] = {threads, causal, mask() != nullptr, scale.has_value(), factor};
  call.add(words, static_cast<int>(sizeof(words) / sizeof(words[0])));
  return add(q, call) && add(k, call) && add(v, call) && (mask() == nullptr || add(mask(), call)) &&
         (!is_backward() || (add(gradient, call) && add(out, call) && add(logsumexp, call)));
}

}  // namespace shim
