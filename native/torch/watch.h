// Checks at every call of a plan whether tensors have changed. It does so without Python, whose
// objects have left the caches by then.
#pragma once
#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory_sample.h"
#include "stable_abi.h"

namespace shim {

// Tensors with the places that keep them, their versions, addresses and samples, other entries of
// modules' dicts, how many entries dicts have, and the classes of objects, all as first met.
class Watch {
 public:
  struct Watched {
    PyObject *dict, *name, *object;  // the tensor, and the dict that has it by this name, or null
    stable::Tensor tensor;           // within the object
    int64_t version;
    const void* address;
    MemorySample sample;
  };

  // What a module's dict has by a name: a child, an own `forward`, or None.
  struct Child {
    PyObject *dict, *name, *object;
  };
  struct Sized {
    PyObject* dict;
    Py_ssize_t size;
  };
  struct Classed {
    PyObject* object;
    PyTypeObject* type;
  };

  Watch() = default;
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() { clear(); }

  // Keeps references to the three objects but none to the handle: with a reference from C++,
  // PyTorch would neither swap a parameter nor collect a cycle of objects through it. Returns false
  // if this PyTorch does not tell of the tensor; then this must not be used. Needs the GIL, like
  // all here.
  // `bytes`: of its memory, if its elements lie side by side; else 0.
  bool add(PyObject* dict, PyObject* name, PyObject* object, stable::Tensor handle,
           std::size_t bytes);

  // Keep references to the objects.
  void add_child(PyObject* dict, PyObject* name, PyObject* object);
  void add_sized(PyObject* dict);
  void add_classed(PyObject* object);

  // Returns whether every tensor is in its place, at its address, and not written to as far as its
  // version and a sample of its memory tell, every child in its place, every dict as large, and
  // every object of the same class.
  bool is_unchanged() const;

  // For the garbage collector.
  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  std::vector<Watched> watched_;
  std::vector<Child> children_;
  std::vector<Sized> sized_;
  std::vector<Classed> classed_;
  bool cleared_ = false;
};

}  // namespace shim
