// Python's lock, and its exceptions on their way through PyTorch.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace shim {

// Holds Python's lock while it lives.
class Lock {
 public:
  Lock() : state_(PyGILState_Ensure()) {}
  ~Lock() { PyGILState_Release(state_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  PyGILState_STATE state_;
};

// Throws the exception that is set in Python, in the form that PyTorch hands on to Python. Under
// Python's lock.
[[noreturn]] void throw_what_is_set();

}  // namespace shim
