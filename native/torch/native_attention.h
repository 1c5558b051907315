// Attention on PyTorch's tensors by a plan of bestof.kernels, without Python.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <array>

#include "attention_call.h"
#include "bindings/c_calls.h"
#include "native.h"

namespace shim {

class NativeAttention final : public Native {
 public:
  using Four = std::array<int64_t, 4>;

  // `owner` keeps the plan at the address `plan`, which was made for results of these sizes
  // [batch, heads, queries, size] and strides.
  NativeAttention(PyObject* owner, const bestof::CCalls* kernels, const void* plan,
                  const Four& sizes, const Four& strides)
      : owner_(owner), kernels_(kernels), plan_(plan), sizes_(sizes), strides_(strides) {
    Py_INCREF(owner_);
  }
  ~NativeAttention() override { Py_DECREF(owner_); }

  // Writes handles of the results and of the logsumexp. Returns false, without a result, if memory
  // is short. The call looks like the one that this was noted for.
  bool run(const AttentionCall& call, stable::Tensor (&results)[2]) const;

 private:
  PyObject* owner_;
  const bestof::CCalls* kernels_;
  const void* plan_;
  Four sizes_, strides_;
};

}  // namespace shim
