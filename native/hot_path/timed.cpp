#include "timed.h"

#include "owned.h"

namespace {

// The innermost trial is last, so searching from the end is short.
void leave_detour(PyObject* detours, PyObject* trial) {
  for (Py_ssize_t place = PyList_GET_SIZE(detours) - 1; place >= 0; --place)
    if (PyList_GET_ITEM(detours, place) == trial) {
      if (PyList_SetSlice(detours, place, place + 1, nullptr) < 0) PyErr_Clear();
      return;
    }
}

// Ends a trial; an exception that is set stays.
void leave(PyObject* detours, PyObject* variable, PyObject* trial, PyObject* token) {
  static PyObject* done = PyUnicode_InternFromString("done");
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (PyObject_SetAttr(trial, done, Py_True) < 0) PyErr_Clear();
  leave_detour(detours, trial);
  if (PyContextVar_Reset(variable, token) < 0)
    PyErr_Clear();  // closed by the collector, in another context
  PyErr_Restore(type, value, traceback);
}

}  // namespace

PyObject* timed(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 7 || !PyList_CheckExact(given[0]) || !PyTuple_CheckExact(given[5]) ||
      !PyDict_CheckExact(given[6])) {
    PyErr_SetString(PyExc_TypeError,
                    "timed: expected detours, current_trial, trial, clock, function, args, kwargs");
    return nullptr;
  }
  PyObject *detours = given[0], *variable = given[1], *trial = given[2], *clock = given[3];
  Owned token(PyContextVar_Set(variable, trial));
  if (!token) return nullptr;
  if (PyList_Append(detours, trial) < 0) {
    leave(detours, variable, trial, token.get());
    return nullptr;
  }
  Owned started(PyObject_CallNoArgs(clock));
  Owned result(started ? PyObject_Call(given[4], given[5],
                                       PyDict_GET_SIZE(given[6]) > 0 ? given[6] : nullptr)
                       : nullptr);
  Owned ended(result ? PyObject_CallNoArgs(clock) : nullptr);
  Owned seconds(ended ? PyNumber_Subtract(ended.get(), started.get()) : nullptr);
  leave(detours, variable, trial, token.get());
  return seconds ? PyTuple_Pack(2, seconds.get(), result.get()) : nullptr;
}
