// The settled call in C++: it asks for the problem, looks the winner up, and calls it without
// building a tuple. This costs 30 to 50 ns beyond the two functions that it calls. hot_path.py, the
// reference of what it does, costs 250 to 400 ns.
//
// Plain CPython API for 3.10 to 3.14. Everything runs under the interpreter's lock, so counts are
// plain additions. hot_path.py does not import this module in a Python that runs without the lock.
// Take a reference before each call into Python: another thread may run meanwhile.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <cstddef>

#include "call_arguments.h"
#include "owned.h"
#include "timed.h"
#include "winner.h"

namespace {

struct HotPath {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* get_problem_size;
  PyObject* settled;  // a dict
  PyObject* detours;  // a list
  PyObject* first;    // the functions of the first alternative by stage, a tuple
  Py_ssize_t stage_count;
};

HotPath* as_hot_path(PyObject* self) {
  return reinterpret_cast<HotPath*>(self);
}

// Made once with the module.
PyTypeObject* winner_type;
PyObject* zero;              // the stage of a plain alternative
PyObject* long_way_name;     // "_long_way"
PyObject* sampled_name;      // "_sampled"
PyObject* check_stage_name;  // "_check_stage"
PyObject* no_keywords;       // an empty dict

// `raise self._unhashable(problem) from error`, where error is the TypeError that is set.
void raise_unhashable(PyObject* self, PyObject* problem) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  Owned error_type(type), error(value), error_traceback(traceback);
  Owned raised(PyObject_CallMethod(self, "_unhashable", "O", problem));
  if (!raised) return;
  if (!PyExceptionInstance_Check(raised.get())) {
    PyErr_SetString(PyExc_TypeError, "exceptions must derive from BaseException");
    return;
  }
  PyException_SetContext(raised.get(), Owned::another(error.get()));
  PyException_SetCause(raised.get(), error.release());
  // PyErr_SetObject would replace the context by an exception that the caller is handling.
  PyErr_Restore(Owned::another(reinterpret_cast<PyObject*>(Py_TYPE(raised.get()))), raised.get(),
                nullptr);
  raised.release();
}

// Returns a new reference to the value of a key; null without an exception if there is none.
PyObject* look_up(PyObject* dict, PyObject* key) {
  return Owned::another(PyDict_GetItemWithError(dict, key));
}

PyObject* long_way(PyObject* self, PyObject* problem, PyObject* stage, const Arguments& arguments) {
  Owned args(arguments.positional_tuple());
  if (!args) return nullptr;
  // The callee does not change its dict, so one empty dict serves all calls without keywords. This
  // saves 0.03 us of a trial.
  Owned kwargs(arguments.has_keywords() ? arguments.keyword_dict() : Owned::another(no_keywords));
  if (!kwargs) return nullptr;
  PyObject* const values[] = {self, problem, stage, args.get(), kwargs.get()};
  return PyObject_VectorcallMethod(long_way_name, values, 5, nullptr);
}

PyObject* sampled(PyObject* self, Winner* winner, PyObject* problem, PyObject* stage,
                  const Arguments& arguments) {
  winner->sample_at = winner->calls + WHILE_SAMPLED;
  Owned args(arguments.positional_tuple());
  if (!args) return nullptr;
  Owned kwargs(arguments.keyword_dict());
  if (!kwargs) return nullptr;
  PyObject* const values[] = {
      self, reinterpret_cast<PyObject*>(winner), problem, stage, args.get(), kwargs.get()};
  return PyObject_VectorcallMethod(sampled_name, values, 6, nullptr);
}

// `position` is the number that `stage` holds.
PyObject* call_stage(PyObject* object, PyObject* stage, Py_ssize_t position,
                     const Arguments& arguments) {
  HotPath* self = as_hot_path(object);
  if (self->get_problem_size == nullptr || self->settled == nullptr) {
    PyErr_Format(PyExc_AttributeError, "'%s' object has no attribute '%s'",
                 Py_TYPE(object)->tp_name,
                 self->get_problem_size == nullptr ? "get_problem_size" : "_settled");
    return nullptr;
  }
  // None in front of the detours switches every selector off: no problem function, no look-up.
  if (PyList_GET_SIZE(self->detours) > 0 && PyList_GET_ITEM(self->detours, 0) == Py_None &&
      self->first != nullptr && PyTuple_CheckExact(self->first) &&
      position < PyTuple_GET_SIZE(self->first)) {
    Owned function(Owned::another(PyTuple_GET_ITEM(self->first, position)));
    return arguments.pass_to(function.get());
  }
  Owned measure(Owned::another(self->get_problem_size));
  Owned problem(arguments.pass_to(measure.get()));
  if (!problem) return nullptr;
  // Read `settled` after the problem function, which may have settled something. Hold it, because
  // comparing keys may run Python.
  Owned settled(Owned::another(self->settled));
  Owned found(look_up(settled.get(), problem.get()));
  if (!found && PyErr_Occurred() != nullptr) {
    if (PyErr_ExceptionMatches(PyExc_TypeError)) raise_unhashable(object, problem.get());
    return nullptr;
  }
  if (!found || PyList_GET_SIZE(self->detours) > 0)
    return long_way(object, problem.get(), stage, arguments);
  if (Py_TYPE(found.get()) != winner_type) {
    PyErr_Format(PyExc_TypeError, "_settled: expected a Winner for a problem; got %s",
                 Py_TYPE(found.get())->tp_name);
    return nullptr;
  }
  Winner* winner = as_winner(found.get());
  if (position >= winner->stages()) {
    PyErr_SetString(PyExc_IndexError, "tuple index out of range");
    return nullptr;
  }
  // No Python ran since the look-up, so the problem is still settled.
  if (position > 0) {
    if (!winner->answers(position)) return long_way(object, problem.get(), stage, arguments);
  } else if (winner->stages() > 1) {
    const int begun = winner->begin();
    if (begun < 0) return nullptr;
    if (begun == 0) return long_way(object, problem.get(), stage, arguments);
  }
  PyObject* result = ++winner->calls >= winner->sample_at
                         ? sampled(object, winner, problem.get(), stage, arguments)
                         : arguments.pass_to(PyTuple_GET_ITEM(winner->functions, position));
  if (result == nullptr && position == 0)
    winner->withdraw();  // a first stage that raises begins no pass
  return result;
}

// Returns the number of a stage below `count`; -1 without an exception for anything else.
Py_ssize_t number_of(PyObject* stage, Py_ssize_t count) {
  if (!PyLong_CheckExact(stage)) return -1;  // True is not a number here
  int overflow = 0;
  const long number = PyLong_AsLongAndOverflow(stage, &overflow);
  return overflow == 0 && number >= 0 && number < count ? number : -1;
}

PyObject* call_group(PyObject* self, Py_ssize_t count, const Arguments& arguments) {
  const bool given = arguments.size() > 0;
  if (given) {
    const Py_ssize_t position = number_of(arguments.values[0], count);
    if (position >= 0) return call_stage(self, arguments.values[0], position, arguments.rest());
  }
  PyObject* const values[] = {self, given ? arguments.values[0] : nullptr};
  Owned stage(PyObject_VectorcallMethod(check_stage_name, values, given ? 2 : 1, nullptr));
  if (!stage) return nullptr;
  const Py_ssize_t position = number_of(stage.get(), count);
  if (position < 0 || !given) {
    PyErr_SetString(PyExc_TypeError, "_check_stage: expected to get a stage");
    return nullptr;
  }
  return call_stage(self, stage.get(), position, arguments.rest());
}

PyObject* call(PyObject* self, const Arguments& arguments) {
  const Py_ssize_t count = as_hot_path(self)->stage_count;
  // A selector may be its own alternative or problem function. Without Python in between, only this
  // counts the depth.
  if (Py_EnterRecursiveCall(" while calling a selector")) return nullptr;
  PyObject* result =
      count > 0 ? call_group(self, count, arguments) : call_stage(self, zero, 0, arguments);
  Py_LeaveRecursiveCall();
  return result;
}

PyObject* call_with_tuple(PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject* keywords = kwargs != nullptr && PyDict_GET_SIZE(kwargs) > 0 ? kwargs : nullptr;
  PyObject* const* values = &PyTuple_GET_ITEM(args, 0);
  return call(self, {values, static_cast<std::size_t>(PyTuple_GET_SIZE(args)), nullptr, keywords});
}

PyObject* call_with_vector(PyObject* self, PyObject* const* values, std::size_t count,
                           PyObject* names) {
  const Arguments arguments{values, count, names, nullptr};
#if PY_VERSION_HEX < 0x030C0000
  // From 3.12 on, the interpreter itself calls a `__call__` that was set on a class afterwards.
  if (Py_TYPE(self)->tp_call != call_with_tuple) {
    Owned args(arguments.positional_tuple());
    if (!args) return nullptr;
    Owned kwargs(arguments.keyword_dict());
    return kwargs ? Py_TYPE(self)->tp_call(self, args.get(), kwargs.get()) : nullptr;
  }
#endif
  return call(self, arguments);
}

PyObject* make(PyTypeObject* type, PyObject*, PyObject*) {
  Owned detours(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "detours"));
  if (!detours) return nullptr;
  if (!PyList_Check(detours.get())) {
    PyErr_Format(PyExc_TypeError, "%s.detours: expected a list; got %s", type->tp_name,
                 Py_TYPE(detours.get())->tp_name);
    return nullptr;
  }
  Owned nothing(PyTuple_New(0));
  if (!nothing) return nullptr;
  // The constructor of object lays out the attributes of the instance in the fast form (3.11).
  PyObject* self = PyBaseObject_Type.tp_new(type, nothing.get(), nullptr);
  if (self == nullptr) return nullptr;
  as_hot_path(self)->vectorcall = call_with_vector;
  as_hot_path(self)->detours = detours.release();
#if PY_VERSION_HEX < 0x030C0000
  // Before 3.12 a class written in Python inherits the offset of the vectorcall without its flag.
  if (type->tp_call == call_with_tuple) type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
#endif
  return self;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  HotPath* self = as_hot_path(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->get_problem_size);
  Py_VISIT(self->settled);
  Py_VISIT(self->detours);
  Py_VISIT(self->first);
  return 0;
}

// `detours` stays until the end: it is in no cycle, and a finalizer may still call.
int clear(PyObject* object) {
  HotPath* self = as_hot_path(object);
  Py_CLEAR(self->get_problem_size);
  Py_CLEAR(self->settled);
  Py_CLEAR(self->first);
  return 0;
}

void destroy(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  Py_CLEAR(as_hot_path(object)->detours);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* settled(PyObject* object, void*) {
  PyObject* value = as_hot_path(object)->settled;
  if (value == nullptr) PyErr_SetString(PyExc_AttributeError, "_settled");
  return Owned::another(value);
}

int set_settled(PyObject* object, PyObject* value, void*) {
  if (value == nullptr || !PyDict_Check(value)) {
    PyErr_SetString(PyExc_TypeError, "_settled: expected a dict");
    return -1;
  }
  Owned old(std::exchange(as_hot_path(object)->settled, Owned::another(value)));
  return 0;
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(HotPath, vectorcall), READONLY, nullptr},
    {"get_problem_size", T_OBJECT_EX, offsetof(HotPath, get_problem_size), 0,
     "Gives the problem of a call."},
    {"_first", T_OBJECT_EX, offsetof(HotPath, first), 0,
     "The functions of the first alternative by stage, which answer while selectors are switched "
     "off."},
    {"_stage_count", T_PYSSIZET, offsetof(HotPath, stage_count), 0,
     "0, or of a group the number of its stages."},
    {nullptr, 0, 0, 0, nullptr}};

PyGetSetDef properties[] = {
    {"_settled", settled, set_settled, "A dict from a problem to its Winner.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("The settled call; hot_path.py says what it does.")},
    {Py_tp_new, reinterpret_cast<void*>(make)},
    {Py_tp_call, reinterpret_cast<void*>(call_with_tuple)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {Py_tp_members, members},
    {Py_tp_getset, properties},
    {0, nullptr}};

PyType_Spec spec = {"bestof.selection._hot_path.HotPath", sizeof(HotPath), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
                        Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE,
                    slots};

PyMethodDef functions[] = {
    {"timed", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(timed)), METH_FASTCALL,
     nullptr},
    {nullptr, nullptr, 0, nullptr}};

// Single-phase initialisation refuses interpreters with a lock of their own.
PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "bestof.selection._hot_path",
                          "The native form of bestof.selection.hot_path, which explains it.",
                          -1,
                          functions,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__hot_path() {
  Owned number(PyLong_FromLong(0)), way(PyUnicode_InternFromString("_long_way"));
  Owned sample(PyUnicode_InternFromString("_sampled")),
      check(PyUnicode_InternFromString("_check_stage"));
  Owned nothing(PyDict_New());
  if (!number || !way || !sample || !check || !nothing) return nullptr;
  Owned type(PyType_FromSpec(&spec)), winner(reinterpret_cast<PyObject*>(make_winner_type()));
  if (!type || !winner) return nullptr;
  Owned module(PyModule_Create(&definition));
  if (!module || PyModule_AddObjectRef(module.get(), "HotPath", type.get()) < 0 ||
      PyModule_AddObjectRef(module.get(), "Winner", winner.get()) < 0)
    return nullptr;
  zero = number.release();
  long_way_name = way.release();
  sampled_name = sample.release();
  check_stage_name = check.release();
  no_keywords = nothing.release();
  winner_type = reinterpret_cast<PyTypeObject*>(winner.release());
  return module.release();
}
