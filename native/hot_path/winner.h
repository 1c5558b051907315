// The type Winner. winner.py is the reference of what it does, and says why.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <climits>

constexpr unsigned long long NEVER = ULLONG_MAX;
// `_sampled` sets the next sample. If it is interrupted first, so many calls lie between.
constexpr unsigned long long WHILE_SAMPLED = 1024;
constexpr Py_ssize_t PASSES_KEPT = 4096;
constexpr Py_ssize_t THREADS_KEPT = 128;

// The passes that one thread has begun. After it, in the same row of memory, stand the numbers of
// its passes that lack stage 1, 2, ...
struct Thread {
  unsigned long name;
  Py_ssize_t begun;
  Py_ssize_t searched;  // whether `earlier` has none of it

  Py_ssize_t* awaited() {
    return reinterpret_cast<Py_ssize_t*>(this + 1) - 1;
  }  // by stage, from 1 on
};

struct Winner {
  PyObject_HEAD PyObject* functions;  // a tuple, by stage
  unsigned long long calls;
  unsigned long long sample_at;
  PyObject* earlier;    // null for None
  Py_ssize_t* awaited;  // by stage, of all threads; then the threads; null until a pass is begun
  Py_ssize_t threads;
  Py_ssize_t room;    // for so many threads
  Py_ssize_t recent;  // where the last one was found
  Py_ssize_t oldest;  // which leaves next

  Py_ssize_t stages() const { return PyTuple_GET_SIZE(functions); }

  Thread* thread_at(Py_ssize_t place) const {
    const Py_ssize_t width = 2 + stages();
    return reinterpret_cast<Thread*>(awaited + stages() + place * width);
  }

  // Returns that of the calling thread; null if it has begun nothing.
  Thread* mine() {
    const unsigned long name = PyThread_get_thread_ident();
    if (recent < threads && thread_at(recent)->name == name) return thread_at(recent);
    for (Py_ssize_t place = 0; place < threads; ++place)
      if (thread_at(place)->name == name) return thread_at(recent = place);
    return nullptr;
  }

  Thread* mine_or_new() {
    Thread* thread = mine();
    return thread != nullptr ? thread : add_mine();
  }

  Thread* add_mine();  // null with a MemoryError if memory is short

  // 1 or 0: whether a pass was begun; -1 with an exception.
  int begin() {
    Thread* thread = mine_or_new();
    if (thread == nullptr) return -1;
    if (earlier != nullptr && thread->begun >= PASSES_KEPT && thread->searched == 0) return 0;
    ++thread->begun;
    for (Py_ssize_t stage = 1; stage < stages(); ++stage) {
      // If others finish its passes, a thread's own count only grows. It is at most the count of
      // all.
      Py_ssize_t& own = thread->awaited()[stage];
      if (own > awaited[stage]) own = awaited[stage];
      if (own < PASSES_KEPT) ++own, ++awaited[stage];
    }
    return 1;
  }

  // Undoes `begin` of the calling thread.
  void withdraw() {
    for (Py_ssize_t stage = 1; stage < stages(); ++stage) take(stage);
  }

  bool take(Py_ssize_t stage) {
    Thread* thread = mine();
    if (thread == nullptr || thread->awaited()[stage] == 0) return false;
    if (awaited[stage] == 0) {
      thread->awaited()[stage] = 0;  // others have finished them
      return false;
    }
    --thread->awaited()[stage];
    --awaited[stage];
    return true;
  }

  bool take_anyones(Py_ssize_t stage) {
    if (awaited == nullptr || awaited[stage] == 0) return false;
    --awaited[stage];
    return true;
  }

  bool answers(Py_ssize_t stage) {
    if (take(stage)) return true;
    if (earlier != nullptr) {
      const Thread* thread = mine();
      return thread != nullptr && thread->searched != 0 && take_anyones(stage);
    }
    take_anyones(stage);
    return true;
  }
};

inline Winner* as_winner(PyObject* self) {
  return reinterpret_cast<Winner*>(self);
}

// A new reference; null with an exception.
PyTypeObject* make_winner_type();
