#include "conversions.h"

namespace shim {

namespace {

bool append(stable::Tensor tensor, PyObject* capsules) {
  stable::Tensor handle = nullptr;  // which the conversion steals
  if (stable::aoti_torch_new_tensor_handle(tensor, &handle) != 0) {
    PyErr_NoMemory();
    return false;
  }
  PyObject* capsule = PyCapsule_New(handle, nullptr, nullptr);
  const bool is_added = capsule != nullptr && PyList_Append(capsules, capsule) == 0;
  Py_XDECREF(capsule);
  return is_added;
}

}  // namespace

PyObject* to_python(const stable::Tensor* tensors, int count, const Conversions& conversions) {
  PyObject* capsules = PyList_New(0);
  for (int place = 0; place < count; ++place) {
    const stable::Tensor one = tensors[place];
    if (capsules != nullptr && one != nullptr && !append(one, capsules)) Py_CLEAR(capsules);
  }
  PyObject* found =
      capsules == nullptr ? nullptr : PyObject_CallOneArg(conversions.to_tensors, capsules);
  Py_XDECREF(capsules);
  return found;
}

bool from_python(PyObject* result, stable::Value* stack, uint64_t results,
                 const Conversions& conversions) {
  const bool is_one = results == 1;
  if (!is_one &&
      (!PyTuple_Check(result) || PyTuple_GET_SIZE(result) != static_cast<Py_ssize_t>(results))) {
    PyErr_Format(PyExc_TypeError, "expected a tuple of %d results; got %R",
                 static_cast<int>(results), result);
    return false;
  }
  stable::Tensor handles[8] = {};
  uint64_t place = 0;
  for (; place < results; ++place) {
    PyObject* one = is_one ? result : PyTuple_GET_ITEM(result, static_cast<Py_ssize_t>(place));
    if (one == Py_None) {
      stable::aoti_torch_new_uninitialized_tensor(&handles[place]);
      continue;
    }
    PyObject* capsule = PyObject_CallOneArg(conversions.to_handle, one);
    if (capsule == nullptr) break;
    handles[place] =
        static_cast<stable::Tensor>(PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule)));
    Py_DECREF(capsule);
    if (handles[place] == nullptr) break;
  }
  if (place < results) {
    for (uint64_t made = 0; made < place; ++made)
      stable::aoti_torch_delete_tensor_object(handles[made]);
    return false;
  }
  for (place = 0; place < results; ++place)
    stack[place] = reinterpret_cast<stable::Value>(handles[place]);
  return true;
}

}  // namespace shim
