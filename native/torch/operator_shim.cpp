#include "operator_shim.h"

#include <utility>

#include "gradients.h"
#include "guards.h"

namespace shim {

OperatorShim::OperatorShim(Conversions conversions, PyObject* answer, PyObject* kept,
                           std::vector<Operator> operators, std::vector<KernelFunction> originals,
                           const Rule& rule, double least, PyObject* waiting, PyObject* first_only)
    : Shim(conversions, first_only, rule.places),
      answer_(answer),
      kept_(kept),
      waiting_(waiting),
      operators_(std::move(operators)),
      originals_(std::move(originals)),
      rule_(rule),
      least_(least) {}

OperatorShim::~OperatorShim() {
  take_out();
  Py_XDECREF(answer_);
  Py_XDECREF(kept_);
  Py_XDECREF(waiting_);
}

bool OperatorShim::put_in(const char* key) {
  if (library_ != nullptr) return false;
  if (stable::aoti_torch_library_init_impl("aten", key, "bestof.torch.backends.shim", 0,
                                           &library_) != 0) {
    library_ = nullptr;
    return false;
  }
  for (int place = 0; place < operators(); ++place) {
    KernelFunction kernel;
    if (!open_entry(*this, place, key, &kernel) ||
        !register_kernel(library_, operators_[place].name.c_str(), kernel)) {
      take_out();
      return false;
    }
  }
  return true;
}

void OperatorShim::take_out() {
  if (library_ == nullptr) return;
  stable::aoti_torch_delete_library_object(library_);
  library_ = nullptr;
  for (int place = 0; place < operators(); ++place) close_entry(*this, place);
}

bool OperatorShim::answer(OperatorCall& call) {
  if (!rule_.chooses(call, least_) || passes_through()) return false;
  uint32_t threads = 0;
  stable::torch_get_num_threads(&threads);
  Call look;
  look.add(threads);
  look.add(level_.load(std::memory_order_relaxed));
  if (rule_.by_inference) look.add(is_inference());
  const bool is_training = rule_.by_training && stable::aoti_torch_grad_mode_is_enabled();
  if (rule_.by_training) look.add(is_training);
  if (!call.describe(look)) return false;
  Known* known = rule_.until_asked == 0 ? known_.find(look) : known_.meet(look);
  bool is_refused = false;
  if (known == nullptr) {
    if (!rule_.asks_when_stuck && known_.is_full()) return false;  // of other looks
  } else if (known->generation.load(std::memory_order_acquire) != generation()) {
    if (known->met.load(std::memory_order_relaxed) < rule_.until_asked) {
      known->met.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    // The length of a dict is one word, so it can be read without Python's lock.
  } else if (!(is_training && PyDict_GET_SIZE(waiting_) > 0) && !is_sampled(*known)) {
    const Native* native = known->native.load(std::memory_order_acquire);
    const bool has_kernel = native != nullptr && !wants_first_only();
    const bool is_answered = has_kernel && native->run(lent_, call.tensors(), call.results);
    is_refused =
        has_kernel && !is_answered && (native->packed() != Native::NONE || rule_.asks_when_stuck);
    if (!is_refused) {
      known->count();
      return is_answered;
    }
    // Python packs an operand, and counts the call.
  }
  asked_.fetch_add(1, std::memory_order_relaxed);
  ask(answer_, call, &look, is_refused);
  return true;
}

}  // namespace shim
