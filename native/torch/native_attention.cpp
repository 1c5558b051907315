#include "native_attention.h"

#include "owned_tensor.h"

namespace shim {

bool NativeAttention::run(const AttentionCall& call, stable::Tensor (&results)[2]) const {
  const int64_t heads = sizes_[1], queries = sizes_[2];
  const int64_t strides[3] = {queries * heads, 1, heads};  // as PyTorch's
  const void *q = nullptr, *k = nullptr, *v = nullptr, *mask = nullptr;
  OwnedTensor out, sums;
  float* out_data = out.make(4, sizes_.data(), strides_.data());
  float* sums_data = sums.make(3, sizes_.data(), strides);
  if (out_data == nullptr || sums_data == nullptr ||
      stable::torch_get_const_data_ptr(call.q, &q) != 0 ||
      stable::torch_get_const_data_ptr(call.k, &k) != 0 ||
      stable::torch_get_const_data_ptr(call.v, &v) != 0 ||
      (call.mask() != nullptr && stable::torch_get_const_data_ptr(call.mask(), &mask) != 0) ||
      !kernels_->attend(plan_, static_cast<const float*>(q), static_cast<const float*>(k),
                        static_cast<const float*>(v), static_cast<const float*>(mask), out_data,
                        sums_data))
    return false;
  results[0] = out.release();
  results[1] = sums.release();
  return true;
}

}  // namespace shim
