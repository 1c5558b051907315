// Packed weights that Python keeps, lent to calls that do not hold its lock.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <atomic>
#include <cstdint>

#include "bindings/c_calls.h"
#include "stable_abi.h"

namespace shim {

// One place of the table. Python fills and ends it under its lock; calls take it and give it back.
// The last user releases the packed weights.
class Lent {
 public:
  // What Python has lent; `key` names the algorithm and shape that they are packed for.
  struct Weights {
    const void* address;  // of the weights that they were packed from
    uint64_t key;
    int64_t version;  // of the weights when they were packed
    const void* packed;
    PyObject* owner;  // of `packed`
    uint64_t fingerprint;
  };

  // Under Python's lock. Returns false if a call still holds the earlier weights.
  bool fill(const Weights& weights);
  // Under Python's lock. No call takes the weights from now on.
  void end();

  // Returns null if these are other weights. The caller gives them back.
  const Weights* take(const void* address, uint64_t key, int64_t version);
  void give_back();

 private:
  static constexpr uint32_t LENT = 1u << 31;  // the bits below count the holders
  void let_go();

  std::atomic<uint32_t> state_{0};
  std::atomic<const void*> address_{nullptr};
  std::atomic<uint64_t> key_{0};
  Weights weights_{};
};

// A table without locks, because a fork could leave one taken. It takes no memory before the first
// weights are lent.
class LentWeights {
 public:
  LentWeights() = default;
  LentWeights(const LentWeights&) = delete;
  LentWeights& operator=(const LentWeights&) = delete;
  ~LentWeights() { delete[] places_.load(); }

  // Under Python's lock. The table takes a reference to `weights.owner`. Returns null if there is
  // no place.
  Lent* lend(const Lent::Weights& weights);
  // Returns null if they are not lent.
  Lent* take(const void* address, uint64_t key, int64_t version, const Lent::Weights** weights);

 private:
  static constexpr uint64_t PLACES = 4096;
  static constexpr uint64_t NEAR = 16;  // the places of one key
  static uint64_t first_place(const void* address, uint64_t key);

  std::atomic<Lent*> places_{nullptr};
};

// Lent weights, until they are given back.
class Borrowed {
 public:
  Borrowed() = default;
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  ~Borrowed() {
    if (from_ != nullptr) from_->give_back();
  }

  const void* packed() const { return weights_ == nullptr ? nullptr : weights_->packed; }
  // Takes what was packed from `weight`, which has so many dense elements at `data`. Returns false
  // if nothing is lent that was packed from these bits.
  bool take(LentWeights& lent, const bestof::CCalls& kernels, stable::Tensor weight,
            const void* data, uint64_t key, int64_t elements);

 private:
  Lent* from_ = nullptr;
  const Lent::Weights* weights_ = nullptr;
};

}  // namespace shim
