// The arguments of a kernel, from PyTorch's stable interface to Python's objects.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "stable_abi.h"

namespace shim {

// The Python functions torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs, which gives the
// very objects that the program holds, and unsafe_alloc_void_ptr_from_tensor. The first one's form
// for a single tensor does not steal: 2.13 leaks the handle.
struct Conversions {
  PyObject* to_tensors;
  PyObject* to_handle;
};

// Owns the arguments. `kinds` has a letter for each: T a tensor, L a list of numbers, M a list of
// truth values, b a truth value, i a number. t and l are T and L that may be absent.
class Arguments {
 public:
  Arguments(stable::Value* stack, const char* kinds) : stack_(stack), kinds_(kinds) {}
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;
  ~Arguments() { release(); }

  stable::Tensor tensor(int place) const { return reinterpret_cast<stable::Tensor>(stack_[place]); }
  // Returns null if it is absent.
  stable::Tensor* optional_tensor(int place) const {
    return reinterpret_cast<stable::Tensor*>(stack_[place]);
  }
  int64_t number(int place) const { return static_cast<int64_t>(stack_[place]); }
  bool truth(int place) const { return static_cast<uint8_t>(stack_[place]) != 0; }
  // Writes up to `most` items of a list; returns how many it has.
  size_t list(int place, int64_t* items, size_t most) const {
    return items_of(stack_[place], items, most);
  }
  size_t optional_list(int place, int64_t* items, size_t most) const {
    const auto* value = reinterpret_cast<stable::Value*>(stack_[place]);
    return value == nullptr ? 0 : items_of(*value, items, most);
  }

  // Returns a new tuple, which owns the tensors and handles; null with an exception.
  PyObject* to_python(const Conversions& conversions);

  // Frees what was not handed on.
  void release();

 private:
  static size_t items_of(stable::Value list, int64_t* items, size_t most);
  // Returns a new list of the tensors that are present.
  PyObject* tensors(PyObject* to_tensors);

  stable::Value* stack_;
  const char* kinds_;
};

// Returns a new list of tensors, without those that are null; null with an exception.
PyObject* to_python(const stable::Tensor* tensors, int count, const Conversions& conversions);

// Writes Python's result as `results` handles into `stack`; false with an exception.
bool from_python(PyObject* result, stable::Value* stack, uint64_t results,
                 const Conversions& conversions);

}  // namespace shim
