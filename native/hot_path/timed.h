// Runs the call of a trial. `timed_in_python` in trial.py is the reference of what it does.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject* timed(PyObject* module, PyObject* const* given, Py_ssize_t count);
