// The arguments of one call of a selector.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>

#include "owned.h"

// Positional arguments, and keywords either as names behind them (a vectorcall) or as a dict.
struct Arguments {
  PyObject* const* values;
  std::size_t count;  // of positional ones, with the flag of vectorcall
  PyObject* names;
  PyObject* keywords;

  Py_ssize_t size() const { return PyVectorcall_NARGS(count); }

  // The arguments after the first one. They lose the flag that would let the callee write to the
  // first.
  Arguments rest() const {
    return {values + 1, static_cast<std::size_t>(size() - 1), names, keywords};
  }

  PyObject* pass_to(PyObject* function) const {
    if (keywords != nullptr) return PyObject_VectorcallDict(function, values, count, keywords);
    return PyObject_Vectorcall(function, values, count, names);
  }

  PyObject* positional_tuple() const {
    PyObject* tuple = PyTuple_New(size());
    if (tuple == nullptr) return nullptr;
    for (Py_ssize_t i = 0; i < size(); ++i) PyTuple_SET_ITEM(tuple, i, Owned::another(values[i]));
    return tuple;
  }

  bool has_keywords() const { return keywords != nullptr || names != nullptr; }

  PyObject* keyword_dict() const {
    if (keywords != nullptr) return PyDict_Copy(keywords);
    Owned dict(PyDict_New());
    const Py_ssize_t named = dict && names != nullptr ? PyTuple_GET_SIZE(names) : 0;
    for (Py_ssize_t i = 0; i < named; ++i)
      if (PyDict_SetItem(dict.get(), PyTuple_GET_ITEM(names, i), values[size() + i]) < 0)
        return nullptr;
    return dict.release();
  }
};
