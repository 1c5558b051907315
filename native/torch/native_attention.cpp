#include "native_attention.h"

#include "owned_tensor.h"

namespace shim {

namespace {

// Writes the address of a tensor; null for a null handle. Returns false if PyTorch refuses.
bool read(stable::Tensor tensor, const void** address) {
  *address = nullptr;
  return tensor == nullptr || stable::torch_get_const_data_ptr(tensor, address) == 0;
}

}  // namespace

bool NativeAttention::run(const AttentionCall& call,
                          stable::Tensor (&results)[MOST_ATTENTION_RESULTS]) const {
  OwnedTensor made[MOST_ATTENTION_RESULTS];
  void* written[MOST_ATTENTION_RESULTS] = {};
  for (std::size_t i = 0; i < results_.size(); ++i) {
    const Form& form = results_[i];
    const auto dimensions = static_cast<int64_t>(form.sizes.size());
    written[i] = made[i].make(dimensions, form.sizes.data(), form.strides.data(), form.dtype);
    if (written[i] == nullptr) return false;
  }
  const stable::Tensor tensors[7] = {call.gradient, call.q,         call.k,     call.v,
                                     call.out,      call.logsumexp, call.mask()};
  const void* operands[7];
  for (int i = 0; i < 7; ++i) {
    if (!read(tensors[i], &operands[i])) return false;
  }
  const bool is_done = call.is_backward() ? kernels_->attend_backward(plan_, operands, written)
                                          : kernels_->attend(plan_, operands[1], operands[2],
                                                             operands[3], operands[6], written[0],
                                                             static_cast<float*>(written[1]));
  if (!is_done) return false;
  for (std::size_t i = 0; i < results_.size(); ++i) results[i] = made[i].release();
  return true;
}

}  // namespace shim
