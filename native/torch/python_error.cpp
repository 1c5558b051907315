#include "python_error.h"

#include <exception>
#include <string>
#include <utility>

#pragma GCC visibility push(default)
// Carries Python's exception through PyTorch. PyTorch catches it by this name and takes the first
// three fields, as torch/csrc/Exceptions.h declares them. A class derived from PyTorchError would
// keep type and text alone, and not every exception can be made from a text: UnicodeDecodeError
// became TypeError, and SystemExit(3) ended the process with 1.
struct python_error : public std::exception {
  // Takes the references over.
  python_error(PyObject* type, PyObject* value, PyObject* traceback, std::string message)
      : type(type), value(value), traceback(traceback), message(std::move(message)) {}
  python_error(const python_error& other)
      : type(other.type), value(other.value), traceback(other.traceback), message(other.message) {
    const shim::Lock lock;
    Py_XINCREF(type);
    Py_XINCREF(value);
    Py_XINCREF(traceback);
  }
  python_error& operator=(const python_error&) = delete;
  ~python_error() override {
    const shim::Lock lock;
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
  }
  const char* what() const noexcept override { return message.c_str(); }

  PyObject *type, *value, *traceback;
  std::string message;
};
#pragma GCC visibility pop

namespace shim {

void throw_what_is_set() {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  PyObject* text = value == nullptr ? nullptr : PyObject_Str(value);
  const char* read = text == nullptr ? nullptr : PyUnicode_AsUTF8(text);
  std::string message = read == nullptr ? "" : read;
  PyErr_Clear();
  Py_XDECREF(text);
  throw python_error(type, value, traceback, std::move(message));
}

}  // namespace shim
