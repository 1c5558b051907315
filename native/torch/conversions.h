// Tensors, from PyTorch's stable interface to Python's objects and back.
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

// Returns a new list of tensors, without those that are null; null with an exception.
PyObject* to_python(const stable::Tensor* tensors, int count, const Conversions& conversions);

// Writes Python's result as `results` handles into `stack`; false with an exception.
bool from_python(PyObject* result, stable::Value* stack, uint64_t results,
                 const Conversions& conversions);

}  // namespace shim
