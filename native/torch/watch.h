// Whether tensors are still what they were, asked at every call of a plan: without Python, whose
// objects have left the caches by then.
#pragma once
#include <Python.h>

#include <cstdint>
#include <vector>

#include "stable_abi.h"

namespace shim {

// Tensors, where they are kept, how often each was written to, and where its memory lies, all as
// they were met.
class Watch {
 public:
  struct Watched {
    PyObject *dict, *name, *object;  // the tensor, and the dict that has it by this name, or null
    stable::Tensor tensor;           // within the object
    int64_t version;
    const void* address;
  };

  Watch() = default;
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() { clear(); }

  // Keeps references to the three objects, and none to the handle: one reference more from C++, and
  // PyTorch neither swaps a parameter for another nor lets a cycle of objects through it be
  // collected. False, and then it is not to be used, where PyTorch does not tell of the tensor.
  // With the GIL, as all here.
  bool add(PyObject* dict, PyObject* name, PyObject* object, stable::Tensor handle);

  // True where every tensor is in its place, where it was, and not written to.
  bool is_unchanged() const;

  // For the garbage collector.
  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  std::vector<Watched> watched_;
  bool cleared_ = false;
};

}  // namespace shim
