// Matrix products on PyTorch's tensors by other kernels than PyTorch's own, without Python.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "bindings/c_calls.h"
#include "lent_weights.h"
#include "native.h"
#include "product_call.h"
#include "stable_abi.h"

namespace shim {

class NativeProduct : public Native {
 public:
  // Returns false, without a result, if the kernel refuses: memory is short, or B is not packed, or
  // has changed since. The call has the sizes and strides of the one that this was noted for.
  virtual bool run(LentWeights& lent, const ProductCall& call, stable::Tensor* output) const = 0;
  // Returns whether it reads packed matrices that Python lends.
  virtual bool reads_packed() const { return false; }
};

// Returns whether the library of this path is loaded and has oneDNN's product.
bool find_onednn(const char* path);

// oneDNN's product of matrices. May only be run if it was found.
class OneDnnProduct final : public NativeProduct {
 public:
  bool run(LentWeights&, const ProductCall& call, stable::Tensor* output) const override;
};

// A plan of bestof.kernels, made for the strides of the operands.
class PlannedProduct final : public NativeProduct {
 public:
  // `owner` keeps the plan at the address `plan`. If `key` is 0, the plan reads B. Otherwise it
  // reads what was packed from a dense B and lent by this key.
  PlannedProduct(PyObject* owner, const bestof::CCalls* kernels, const void* plan, uint64_t key)
      : owner_(owner), kernels_(kernels), plan_(plan), key_(key) {
    Py_INCREF(owner_);
  }
  ~PlannedProduct() override { Py_DECREF(owner_); }
  bool run(LentWeights& lent, const ProductCall& call, stable::Tensor* output) const override;
  bool reads_packed() const override { return key_ != 0; }

 private:
  PyObject* owner_;
  const bestof::CCalls* kernels_;
  const void* plan_;
  uint64_t key_;
};

}  // namespace shim
