// An owned reference to a Python object.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <utility>

// Null stands for "an exception is set", or for nothing.
class Owned {
 public:
  explicit Owned(PyObject* object = nullptr) : object_(object) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { Py_XDECREF(object_); }
  static PyObject* another(PyObject* object) {
    Py_XINCREF(object);
    return object;
  }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};
