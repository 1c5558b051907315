// What all native kernels of the shims have in common.
#pragma once
#include "lent_weights.h"
#include "stable_abi.h"

namespace shim {

// A kernel that answers settled calls without Python.
class Native {
 public:
  Native() = default;
  Native(const Native&) = delete;
  Native& operator=(const Native&) = delete;
  virtual ~Native() = default;

  // Computes the results of a call, which looks like the one that this was noted for. The operands
  // are the tensors of the call in their order, null where one is absent. Returns false, without a
  // result, if the kernel refuses: memory is short, or what was packed from an operand is not lent
  // or has changed since.
  virtual bool run(LentWeights& lent, const stable::Tensor* operands,
                   stable::Tensor* results) const = 0;
  // Writes the results to the memory of the caller, for operands by their addresses, null where one
  // is absent. Returns false, without a result, if memory is short or the kernel cannot do this.
  virtual bool write(const void* const*, int, void* const*, int) const { return false; }
  // Returns the place of the operand that it reads packed, as Python lends it; NONE for none.
  static constexpr int NONE = -1;
  virtual int packed() const { return NONE; }
};

}  // namespace shim
