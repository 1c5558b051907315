#include "winner.h"

#include <structmember.h>

#include <cstddef>

#include "owned.h"

Thread* Winner::add_mine() {
  const Py_ssize_t width = 2 + stages();
  if (threads == room && room < THREADS_KEPT) {
    const Py_ssize_t more = room == 0 ? 1 : 2 * room;
    const auto bytes = static_cast<std::size_t>(stages() + more * width) * sizeof(Py_ssize_t);
    auto* grown = static_cast<Py_ssize_t*>(PyMem_Realloc(awaited, bytes));
    if (grown == nullptr) {
      PyErr_NoMemory();
      return nullptr;
    }
    if (awaited == nullptr)
      for (Py_ssize_t stage = 0; stage < stages(); ++stage) grown[stage] = 0;
    awaited = grown;
    room = more;
  }
  if (threads < room) {
    recent = threads++;
  } else {
    recent = oldest;
    oldest = (oldest + 1) % threads;
  }
  Thread* thread = thread_at(recent);
  *thread = {PyThread_get_thread_ident(), 0, 0};
  for (Py_ssize_t stage = 1; stage < stages(); ++stage) thread->awaited()[stage] = 0;
  return thread;
}

namespace {

PyObject* make_winner(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"functions", "sample_at", nullptr};
  PyObject* functions = nullptr;
  unsigned long long sample_at = NEVER;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|K:Winner", const_cast<char**>(names),
                                   &PyTuple_Type, &functions, &sample_at))
    return nullptr;
  if (PyTuple_GET_SIZE(functions) == 0) {
    PyErr_SetString(PyExc_ValueError, "functions: expected at least one");
    return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);  // the other fields are zero
  if (self == nullptr) return nullptr;
  as_winner(self)->functions = Owned::another(functions);
  as_winner(self)->sample_at = sample_at;
  return self;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(as_winner(object)->functions);
  Py_VISIT(as_winner(object)->earlier);
  return 0;
}

// `functions` is never null, and the tuple and what it holds break any circle through it.
int clear(PyObject* object) {
  Py_CLEAR(as_winner(object)->earlier);
  return 0;
}

void destroy(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  Py_DECREF(as_winner(object)->functions);
  Py_XDECREF(as_winner(object)->earlier);
  PyMem_Free(as_winner(object)->awaited);
  type->tp_free(object);
  Py_DECREF(type);
}

// Copies and pickles count anew.
PyObject* reduce(PyObject* object, PyObject*) {
  return Py_BuildValue("O(O)", reinterpret_cast<PyObject*>(Py_TYPE(object)),
                       as_winner(object)->functions);
}

PyObject* earlier(PyObject* object, void*) {
  PyObject* found = as_winner(object)->earlier;
  return Owned::another(found != nullptr ? found : Py_None);
}

int set_earlier(PyObject* object, PyObject* value, void*) {
  PyObject* wanted = value == Py_None ? nullptr : value;
  Owned old(std::exchange(as_winner(object)->earlier, Owned::another(wanted)));
  return 0;
}

PyObject* begin(PyObject* object, PyObject*) {
  const int begun = as_winner(object)->begin();
  return begun < 0 ? nullptr : PyBool_FromLong(begun);
}

// Returns the number of a later stage; -1 with an exception for anything else.
Py_ssize_t later_stage(PyObject* object, PyObject* stage) {
  const Py_ssize_t number = PyLong_AsSsize_t(stage);
  if (number == -1 && PyErr_Occurred() != nullptr) return -1;
  if (number > 0 && number < as_winner(object)->stages()) return number;
  PyErr_SetString(PyExc_IndexError, "expected a stage after the first");
  return -1;
}

PyObject* answers(PyObject* object, PyObject* stage) {
  const Py_ssize_t number = later_stage(object, stage);
  return number < 0 ? nullptr : PyBool_FromLong(as_winner(object)->answers(number));
}

PyObject* take(PyObject* object, PyObject* stage) {
  const Py_ssize_t number = later_stage(object, stage);
  return number < 0 ? nullptr : PyBool_FromLong(as_winner(object)->take(number));
}

PyObject* take_anyones(PyObject* object, PyObject* stage) {
  const Py_ssize_t number = later_stage(object, stage);
  return number < 0 ? nullptr : PyBool_FromLong(as_winner(object)->take_anyones(number));
}

PyObject* pass_over_earlier(PyObject* object, PyObject*) {
  Thread* thread = as_winner(object)->mine_or_new();
  if (thread == nullptr) return nullptr;
  thread->searched = 1;
  Py_RETURN_NONE;
}

PyObject* is_open(PyObject* object, PyObject* own) {
  Winner* winner = as_winner(object);
  const int whose = PyObject_IsTrue(own);
  if (whose < 0) return nullptr;
  Thread* thread = winner->mine();
  const Py_ssize_t* counts = whose == 0          ? winner->awaited
                             : thread != nullptr ? thread->awaited()
                                                 : nullptr;
  for (Py_ssize_t stage = 1; counts != nullptr && stage < winner->stages(); ++stage)
    if (counts[stage] > 0) Py_RETURN_TRUE;
  Py_RETURN_FALSE;
}

PyMemberDef members[] = {
    {"functions", T_OBJECT, offsetof(Winner, functions), READONLY, "A tuple, by stage."},
    {"calls", T_ULONGLONG, offsetof(Winner, calls), 0,
     "How many calls went straight to the functions."},
    {"sample_at", T_ULONGLONG, offsetof(Winner, sample_at), 0,
     "At which of these calls the next is sampled."},
    {nullptr, 0, 0, 0, nullptr}};

PyGetSetDef properties[] = {
    {"earlier", earlier, set_earlier, "Open passes from before; None where none are.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyObject* withdraw(PyObject* self, PyObject*) {
  as_winner(self)->withdraw();
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {{"begin", begin, METH_NOARGS, nullptr},
                         {"withdraw", withdraw, METH_NOARGS, nullptr},
                         {"answers", answers, METH_O, nullptr},
                         {"take", take, METH_O, nullptr},
                         {"take_anyones", take_anyones, METH_O, nullptr},
                         {"pass_over_earlier", pass_over_earlier, METH_NOARGS, nullptr},
                         {"is_open", is_open, METH_O, nullptr},
                         {"__reduce__", reduce, METH_NOARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("Who answers a settled problem; see winner.py.")},
    {Py_tp_new, reinterpret_cast<void*>(make_winner)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {Py_tp_members, members},
    {Py_tp_getset, properties},
    {Py_tp_methods, methods},
    {0, nullptr}};

PyType_Spec spec = {"bestof.selection._hot_path.Winner", sizeof(Winner), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, slots};

}  // namespace

PyTypeObject* make_winner_type() {
  return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
}
