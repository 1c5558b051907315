// A native forward convolution on PyTorch's tensors, without Python.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

#include "bindings/c_calls.h"
#include "native.h"
#include "stable_abi.h"

namespace shim {

struct ConvolutionShape {
  int64_t images, channels, height, width;  // of the input
  int64_t filters, depth, kernel_height,
      kernel_width;  // of the weight; its depth is channels / groups
  int64_t out_height, out_width;
};

// A plan of bestof.kernels with the shapes and layouts of the tensors around it. It is immutable,
// and lives as long as its owner.
class NativeConvolution final : public Native {
 public:
  // `owner` keeps the plan at the address `plan`. If `key` is 0, the plan reads the weights of the
  // call. Otherwise it reads packed weights that were lent by this key, or by the next one if the
  // weights are in channels last.
  NativeConvolution(PyObject* owner, const bestof::CCalls* kernels, const void* plan,
                    const ConvolutionShape& shape, bool channels_last, uint64_t key)
      : owner_(owner),
        kernels_(kernels),
        plan_(plan),
        shape_(shape),
        channels_last_(channels_last),
        key_(key) {
    Py_INCREF(owner_);
  }
  ~NativeConvolution() override { Py_DECREF(owner_); }

  // Of operands (input, weight, bias or null). Also refuses other layouts or dtypes; the shapes are
  // those of the plan.
  bool run(LentWeights& lent, const stable::Tensor* operands,
           stable::Tensor* results) const override;
  int packed() const override { return key_ != 0 ? 1 : NONE; }

 private:
  PyObject* owner_;
  const bestof::CCalls* kernels_;
  const void* plan_;
  ConvolutionShape shape_;
  bool channels_last_;
  uint64_t key_;
};

}  // namespace shim
