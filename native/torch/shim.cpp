#include "shim.h"

#include <utility>

#include "python_error.h"

namespace shim {

namespace {

thread_local const Call* asked = nullptr;
thread_local bool asked_refused = false;

}  // namespace

Shim::~Shim() {
  Py_XDECREF(conversions_.to_tensors);
  Py_XDECREF(conversions_.to_handle);
  Py_XDECREF(first_only_);
}

void Shim::set_level(int64_t level) {
  level_.store(level, std::memory_order_relaxed);
  forget();
}

bool Shim::note(uint64_t generation, std::vector<std::shared_ptr<Count>> counts,
                std::shared_ptr<const Native> native) {
  return asked != nullptr && known_.note(*asked, generation, std::move(counts), std::move(native));
}

bool Shim::is_refused() {
  return asked_refused;
}

bool Shim::is_sampled(Known& known) {
  return known.turn.fetch_add(1, std::memory_order_relaxed) % ASKED_EVERY == ASKED_EVERY - 1;
}

void Shim::ask(PyObject* function, Question& question, const Call* call, bool refused) {
  const Call* outer = std::exchange(asked, call);  // an alternative may call an operator in turn
  const bool outer_refused = std::exchange(asked_refused, refused);
  const Lock lock;
  PyObject* given = question.arguments(conversions_);
  PyObject* result = given == nullptr ? nullptr : PyObject_Call(function, given, nullptr);
  Py_XDECREF(given);
  asked = outer;
  asked_refused = outer_refused;
  const bool is_good = result != nullptr && question.take(result, conversions_);
  Py_XDECREF(result);
  if (!is_good) throw_what_is_set();
}

}  // namespace shim
