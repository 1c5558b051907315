#include "native_plan.h"

#include "operator_call.h"
#include "owned_tensor.h"

namespace shim {

namespace {

// Writes the address of a tensor; null for a null handle. Returns false if PyTorch refuses.
bool read(stable::Tensor tensor, const void** address) {
  *address = nullptr;
  return tensor == nullptr || stable::torch_get_const_data_ptr(tensor, address) == 0;
}

}  // namespace

bool NativePlan::run(LentWeights& lent, const stable::Tensor* operands,
                     stable::Tensor* results) const {
  const void* read_from[OperatorCall::MOST_OPERANDS];
  for (int i = 0; i < operands_; ++i) {
    if (!read(operands[i], &read_from[i])) return false;
  }
  // First of all: if Python must pack an operand, no memory was asked for in vain.
  Borrowed borrowed;
  if (packed_.key != 0 && !borrowed.take(lent, *kernels_, operands[packed_.place],
                                         read_from[packed_.place], packed_.key, packed_.elements))
    return false;
  OwnedTensor made[OperatorCall::MOST_RESULTS];
  void* written[OperatorCall::MOST_RESULTS] = {};
  for (std::size_t i = 0; i < results_.size(); ++i) {
    const Form& form = results_[i];
    const auto dimensions = static_cast<int64_t>(form.sizes.size());
    written[i] = made[i].make(dimensions, form.sizes.data(), form.strides.data(), form.dtype);
    if (written[i] == nullptr) return false;
  }
  if (!kernels_->run(plan_, read_from, written, borrowed.packed())) return false;
  for (std::size_t i = 0; i < results_.size(); ++i) results[i] = made[i].release();
  return true;
}

bool NativePlan::write(const void* const* operands, int given, void* const* results,
                       int made) const {
  if (packed_.key != 0 || given != operands_ || made != static_cast<int>(results_.size()))
    return false;
  return kernels_->run(plan_, operands, results, nullptr);
}

}  // namespace shim
