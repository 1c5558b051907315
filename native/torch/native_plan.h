// A plan of bestof.kernels on PyTorch's tensors, without Python.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "bindings/c_calls.h"
#include "native.h"

namespace shim {

// Sizes, strides and dtype of a new tensor.
struct Form {
  std::vector<int64_t> sizes, strides;
  int32_t dtype;
};

// The operand that a plan reads packed: its place, the key that it is lent by, and its elements,
// which are dense. The key is 0 if the plan reads all operands as they are.
struct PackedOperand {
  int place = 0;
  uint64_t key = 0;
  int64_t elements = 0;
};

class NativePlan final : public Native {
 public:
  // `owner` keeps the plan at the address `plan`, which reads so many operands and writes results
  // of these forms.
  NativePlan(PyObject* owner, const bestof::CCalls* kernels, const void* plan, int operands,
             std::vector<Form> results, const PackedOperand& packed)
      : owner_(owner),
        kernels_(kernels),
        plan_(plan),
        operands_(operands),
        results_(std::move(results)),
        packed_(packed) {
    Py_INCREF(owner_);
  }
  ~NativePlan() override { Py_DECREF(owner_); }

  bool run(LentWeights& lent, const stable::Tensor* operands,
           stable::Tensor* results) const override;
  bool write(const void* const* operands, int given, void* const* results, int made) const override;
  int packed() const override { return packed_.key != 0 ? packed_.place : NONE; }

 private:
  PyObject* owner_;
  const bestof::CCalls* kernels_;
  const void* plan_;
  int operands_;
  std::vector<Form> results_;
  PackedOperand packed_;
};

}  // namespace shim
