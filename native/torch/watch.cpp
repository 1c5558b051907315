#include "watch.h"

#include <cstring>

#include "tensor_version.h"

namespace shim {

namespace {

// Reads the pointer of a tensor's object, which follows the header: it is an at::Tensor, and a
// handle points to the same. Null if this PyTorch has another layout.
stable::Tensor tensor_within(PyObject* object, stable::Tensor handle) {
  void* within = reinterpret_cast<char*>(object) + sizeof(PyObject);
  const bool same = std::memcmp(within, handle, sizeof(void*)) == 0;
  return same ? static_cast<stable::Tensor>(within) : nullptr;
}

}  // namespace

bool Watch::add(PyObject* dict, PyObject* name, PyObject* object, stable::Tensor handle,
                std::size_t bytes) {
  const stable::Tensor tensor = tensor_within(object, handle);
  const void* address = nullptr;
  if (tensor == nullptr || stable::torch_get_const_data_ptr(tensor, &address) != 0) return false;
  const int64_t version = version_of(tensor);
  if (version < 0) return false;
  Py_XINCREF(dict);
  Py_XINCREF(name);
  Py_INCREF(object);
  watched_.push_back({dict, name, object, tensor, version, address, {address, bytes}});
  return true;
}

void Watch::add_child(PyObject* dict, PyObject* name, PyObject* object) {
  Py_INCREF(dict);
  Py_INCREF(name);
  Py_INCREF(object);
  children_.push_back({dict, name, object});
}

void Watch::add_sized(PyObject* dict) {
  Py_INCREF(dict);
  sized_.push_back({dict, PyDict_Size(dict)});
}

void Watch::add_classed(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  Py_INCREF(object);
  Py_INCREF(type);  // else another class could get its address
  classed_.push_back({object, type});
}

int Watch::traverse(visitproc visit, void* arg) const {
  for (const Watched& one : watched_) {
    Py_VISIT(one.dict);
    Py_VISIT(one.name);
    Py_VISIT(one.object);
  }
  for (const Child& one : children_) {
    Py_VISIT(one.dict);
    Py_VISIT(one.name);
    Py_VISIT(one.object);
  }
  for (const Sized& one : sized_) Py_VISIT(one.dict);
  for (const Classed& one : classed_) {
    Py_VISIT(one.object);
    Py_VISIT(one.type);
  }
  return 0;
}

void Watch::clear() {
  cleared_ = true;
  std::vector<Watched> watched;
  std::vector<Child> children;
  std::vector<Sized> sized;
  std::vector<Classed> classed;
  watched.swap(watched_);  // what ends here may ask
  children.swap(children_);
  sized.swap(sized_);
  classed.swap(classed_);
  for (const Watched& one : watched) {
    Py_XDECREF(one.dict);
    Py_XDECREF(one.name);
    Py_DECREF(one.object);
  }
  for (const Child& one : children) {
    Py_DECREF(one.dict);
    Py_DECREF(one.name);
    Py_DECREF(one.object);
  }
  for (const Sized& one : sized) Py_DECREF(one.dict);
  for (const Classed& one : classed) {
    Py_DECREF(one.object);
    Py_DECREF(one.type);
  }
}

bool Watch::is_unchanged() const {
  if (cleared_) return false;
  // Loops by question and not by tensor, so that the cache misses of neighbours overlap.
  for (const Watched& one : watched_) {
    __builtin_prefetch(one.dict);
    __builtin_prefetch(one.name);
    __builtin_prefetch(one.tensor);
    one.sample.prefetch(one.address);
  }
  for (const Sized& one : sized_) __builtin_prefetch(one.dict);
  for (const Classed& one : classed_) __builtin_prefetch(one.object);
  for (const Watched& one : watched_) {
    if (one.dict == nullptr) continue;
    PyObject* found = PyDict_GetItemWithError(one.dict, one.name);
    if (found != one.object) {
      PyErr_Clear();
      return false;
    }
  }
  for (const Sized& one : sized_) {
    if (PyDict_Size(one.dict) != one.size) return false;
  }
  for (const Classed& one : classed_) {
    if (Py_TYPE(one.object) != one.type) return false;
  }
  for (const Child& one : children_) {
    if (PyDict_GetItemWithError(one.dict, one.name) != one.object) {
      PyErr_Clear();
      return false;
    }
  }
  for (const Watched& one : watched_) {
    if (version_of(one.tensor) != one.version) return false;
  }
  for (const Watched& one : watched_) {
    const void* address = nullptr;
    if (stable::torch_get_const_data_ptr(one.tensor, &address) != 0 || address != one.address)
      return false;
  }
  // Last, because the memory at other addresses may be gone.
  for (const Watched& one : watched_) {
    if (!one.sample.matches(one.address)) return false;
  }
  return true;
}

}  // namespace shim
