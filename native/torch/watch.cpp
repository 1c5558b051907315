#include "watch.h"

#include "tensor_version.h"

namespace shim {

Watch::~Watch() {
  for (const Watched& one : watched_) {
    Py_XDECREF(one.dict);
    Py_XDECREF(one.name);
    Py_XDECREF(one.object);
    stable::aoti_torch_delete_tensor_object(one.handle);
  }
}

bool Watch::add(PyObject* dict, PyObject* name, PyObject* object, stable::Tensor handle) {
  Py_XINCREF(dict);
  Py_XINCREF(name);
  Py_XINCREF(object);
  const void* address = nullptr;
  const bool told = stable::torch_get_const_data_ptr(handle, &address) == 0;
  watched_.push_back({dict, name, object, handle, version_of(handle), address});
  return told && watched_.back().version >= 0;
}

bool Watch::is_unchanged() const {
  // By kind of question, not by tensor: the misses of neighbours then overlap.
  for (const Watched& one : watched_) {
    __builtin_prefetch(one.dict);
    __builtin_prefetch(one.name);
    __builtin_prefetch(one.handle);
  }
  for (const Watched& one : watched_) {
    if (one.dict == nullptr) continue;
    PyObject* found = PyDict_GetItemWithError(one.dict, one.name);
    if (found != one.object) {
      PyErr_Clear();
      return false;
    }
  }
  for (const Watched& one : watched_) {
    if (version_of(one.handle) != one.version) return false;
  }
  for (const Watched& one : watched_) {
    const void* address = nullptr;
    if (stable::torch_get_const_data_ptr(one.handle, &address) != 0 || address != one.address) return false;
  }
  return true;
}

}  // namespace shim
