// Attention on PyTorch's tensors by a plan of bestof.kernels, without Python.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <utility>
#include <vector>

#include "attention_call.h"
#include "bindings/c_calls.h"
#include "native.h"

namespace shim {

// Sizes, strides and dtype of a new tensor.
struct Form {
  std::vector<int64_t> sizes, strides;
  int32_t dtype;
};

// A forward plan has two results, which are those of Attended. A backward plan has three.
class NativeAttention final : public Native {
 public:
  // `owner` keeps the plan at the address `plan`, which was made for results of these forms.
  NativeAttention(PyObject* owner, const bestof::CCalls* kernels, const void* plan,
                  std::vector<Form> results)
      : owner_(owner), kernels_(kernels), plan_(plan), results_(std::move(results)) {
    Py_INCREF(owner_);
  }
  ~NativeAttention() override { Py_DECREF(owner_); }

  // Writes handles of the results. Returns false, without a result, if memory is short. The call
  // looks like the one that this was noted for.
  bool run(const AttentionCall& call, stable::Tensor (&results)[MOST_ATTENTION_RESULTS]) const;

 private:
  PyObject* owner_;
  const bestof::CCalls* kernels_;
  const void* plan_;
  std::vector<Form> results_;
};

}  // namespace shim
