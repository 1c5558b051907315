// One call of an operator of PyTorch: its arguments, and what it looks like.
#pragma once
#include <cstdint>
#include <string>

#include "cpp_kernel.h"
#include "known_calls.h"
#include "shim.h"
#include "stable_abi.h"

namespace shim {

// An argument, which PyTorch owns.
struct Argument {
  enum Kind : uint8_t { TENSOR, ABSENT, WHOLE, REAL, TRUTH, LIST, TEXT };

  Kind kind;
  union {
    stable::Tensor tensor;  // null for an optional tensor that is absent
    int64_t whole;
    double real;
    bool truth;
    const StackList* list;  // of whole numbers or truth values
    const std::string* text;
  };

  static Argument of(stable::Tensor tensor) {
    Argument made;
    made.kind = TENSOR;
    made.tensor = tensor;
    return made;
  }
  static Argument of(int64_t whole) {
    Argument made;
    made.kind = WHOLE;
    made.whole = whole;
    return made;
  }
  static Argument of(double real) {
    Argument made;
    made.kind = REAL;
    made.real = real;
    return made;
  }
  static Argument of(bool truth) {
    Argument made;
    made.kind = TRUTH;
    made.truth = truth;
    return made;
  }
  // An optional argument, other than a tensor, that is absent.
  static Argument absent() {
    Argument made;
    made.kind = ABSENT;
    made.whole = 0;
    return made;
  }
};

class OperatorCall final : public Question {
 public:
  static constexpr int MOST_ARGUMENTS = 16, MOST_OPERANDS = 8, MOST_RESULTS = 4;

  // `results` is how many tensors the operator returns.
  explicit OperatorCall(int results) : results_(results) {}

  // Adds the next argument. Returns false if there are too many.
  bool add(const Argument& argument);

  int operands() const { return operand_count_; }
  // The tensors in their order, null where one is absent.
  const stable::Tensor* tensors() const { return operands_; }
  int argument_count() const { return argument_count_; }
  const Argument& argument(int place) const { return arguments_[place]; }

  // Adds every argument to the key: of tensors the dtype, sizes and strides. Returns false for
  // other arguments than bestof chooses for: tensors that do not lie by strides, numbers that are
  // not known yet, and too many of them.
  bool describe(Call& call) const;

  // Returns all arguments for Python.
  PyObject* arguments(const Conversions& conversions) override;
  bool take(PyObject* result, const Conversions& conversions) override {
    return from_python(result, reinterpret_cast<stable::Value*>(results), results_, conversions);
  }

  stable::Tensor results[MOST_RESULTS] = {};

 private:
  int results_, argument_count_ = 0, operand_count_ = 0;
  Argument arguments_[MOST_ARGUMENTS];
  stable::Tensor operands_[MOST_OPERANDS];
};

}  // namespace shim
