// A forward convolution of ours, on PyTorch's tensors and without Python.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

#include "bindings/c_calls.h"
#include "lent_weights.h"
#include "stable_abi.h"

namespace shim {

struct ConvolutionShape {
  int64_t images, channels, height, width;  // of the input
  int64_t filters, depth, kernel_height,
      kernel_width;  // of the weight; its depth is channels / groups
  int64_t out_height, out_width;
};

// A plan of bestof.kernels, and what the tensors around it are. It lives as long as its owner, and
// is never changed.
class NativeConvolution {
 public:
  // `plan` is the address of what `owner` keeps. Results are in channels last, or else in channels
  // first. `key` is 0 where weights come as they are; otherwise packed ones are taken that were
  // lent by this key, by the next one where they were packed from rows.
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
  NativeConvolution(const NativeConvolution&) = delete;
  NativeConvolution& operator=(const NativeConvolution&) = delete;
  ~NativeConvolution() { Py_DECREF(owner_); }

  // False, and nothing is made, where it is for Python to answer: tensors in other layouts or of
  // another dtype, weights that are not lent or have changed since, memory that is short. The
  // tensors' shapes are what they were noted with.
  bool run(LentWeights& lent, stable::Tensor input, stable::Tensor weight,
           const stable::Tensor* bias, stable::Tensor* output) const;

 private:
  PyObject* owner_;
  const bestof::CCalls* kernels_;
  const void* plan_;
  ConvolutionShape shape_;
  bool channels_last_;
  uint64_t key_;
};

}  // namespace shim
