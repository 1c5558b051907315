#include "lent_weights.h"

#include <utility>

#include "tensor_version.h"

namespace shim {

bool Lent::fill(const Weights& weights) {
  // A call that compares counts as a holder for a moment.
  if (state_.load(std::memory_order_acquire) != 0) return false;
  let_go();
  Py_INCREF(weights.owner);
  weights_ = weights;
  address_.store(weights.address, std::memory_order_relaxed);
  key_.store(weights.key, std::memory_order_relaxed);
  state_.fetch_or(LENT, std::memory_order_acq_rel);
  return true;
}

void Lent::end() {
  // Without an address no call looks here again, and none waits for Python's lock to give back.
  address_.store(nullptr, std::memory_order_relaxed);
  if ((state_.fetch_and(~LENT, std::memory_order_acq_rel) & ~LENT) == 0) let_go();
}

const Lent::Weights* Lent::take(const void* address, uint64_t key, int64_t version) {
  if (address_.load(std::memory_order_relaxed) != address ||
      key_.load(std::memory_order_relaxed) != key)
    return nullptr;
  // Compare again: the place may have been filled anew.
  const bool is_lent = (state_.fetch_add(1, std::memory_order_acq_rel) & LENT) != 0;
  if (is_lent && weights_.address == address && weights_.key == key && weights_.version == version)
    return &weights_;
  give_back();
  return nullptr;
}

void Lent::give_back() {
  if (state_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const PyGILState_STATE lock = PyGILState_Ensure();
  if (state_.load(std::memory_order_acquire) == 0) let_go();
  PyGILState_Release(lock);
}

void Lent::let_go() {
  Py_XDECREF(std::exchange(weights_.owner, nullptr));
}

Lent* LentWeights::lend(const Lent::Weights& weights) {
  Lent* places = places_.load(std::memory_order_acquire);
  if (places == nullptr) {  // under Python's lock, so no other thread makes them
    places = new Lent[PLACES];
    places_.store(places, std::memory_order_release);
  }
  const uint64_t first = first_place(weights.address, weights.key);
  for (uint64_t place = first; place < first + NEAR; ++place) {
    if (places[place % PLACES].fill(weights)) return &places[place % PLACES];
  }
  return nullptr;
}

Lent* LentWeights::take(const void* address, uint64_t key, int64_t version,
                        const Lent::Weights** weights) {
  Lent* places = places_.load(std::memory_order_acquire);
  if (places == nullptr) return nullptr;
  const uint64_t first = first_place(address, key);
  for (uint64_t place = first; place < first + NEAR; ++place) {
    Lent& lent = places[place % PLACES];
    *weights = lent.take(address, key, version);
    if (*weights != nullptr) return &lent;
  }
  return nullptr;
}

uint64_t LentWeights::first_place(const void* address, uint64_t key) {
  const uint64_t mixed = (reinterpret_cast<uint64_t>(address) / 64 + key) * 0x9E3779B97F4A7C15ULL;
  return mixed >> 32;
}

bool Borrowed::take(LentWeights& lent, const bestof::CCalls& kernels, stable::Tensor weight,
                    const void* data, uint64_t key, int64_t elements) {
  // A write through `.data` raises no version, so the bits are compared too.
  from_ = lent.take(data, key, version_of(weight), &weights_);
  if (from_ == nullptr) return false;
  return kernels.fingerprint(data, elements * static_cast<long>(sizeof(float))) ==
         weights_->fingerprint;
}

}  // namespace shim
