// Checks at every call of a plan whether tensors have changed. It does so without Python, whose
// objects have left the caches by then.
#pragma once
#include <Python.h>

#include <cstdint>
#include <vector>

#include "stable_abi.h"

namespace shim {

// Tensors with the places that keep them, their versions and their addresses, and the children of
// modules, all as first met.
class Watch {
 public:
  struct Watched {
    PyObject *dict, *name, *object;  // the tensor, and the dict that has it by this name, or null
    stable::Tensor tensor;           // within the object
    int64_t version;
    const void* address;
  };

  // A module, or None, and the dict that has it by this name and nothing beside `size` entries.
  struct Child {
    PyObject *dict, *name, *object;
    Py_ssize_t size;
  };

  Watch() = default;
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() { clear(); }

  // Keeps references to the three objects but none to the handle: with a reference from C++,
  // PyTorch would neither swap a parameter nor collect a cycle of objects through it. Returns false
  // if this PyTorch does not tell of the tensor; then this must not be used. Needs the GIL, like
  // all here.
  bool add(PyObject* dict, PyObject* name, PyObject* object, stable::Tensor handle);

  // Keeps references to the three objects.
  void add_child(PyObject* dict, PyObject* name, PyObject* object);

  // Returns whether every tensor is in its place, at its address, and not written to, and every
  // child in its place.
  bool is_unchanged() const;

  // For the garbage collector.
  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  std::vector<Watched> watched_;
  std::vector<Child> children_;
  bool cleared_ = false;
};

}  // namespace shim
