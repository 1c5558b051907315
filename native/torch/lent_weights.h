// Packed weights that Python keeps, lent to calls that do not hold its lock.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <atomic>
#include <cstdint>

namespace shim {

// One place of the table. Python, under its lock, fills and ends it; calls take it and give it
// back. Whoever is last lets go of what was packed.
class Lent {
 public:
  // What Python has lent: `key` tells what they are packed for.
  struct Weights {
    const void* address;  // of the weights that they were packed from
    uint64_t key;
    int64_t version;  // how often they had been written to
    const void* packed;
    PyObject* owner;  // of `packed`
    uint64_t fingerprint;
  };

  // Under Python's lock. False where somebody still holds what was here.
  bool fill(const Weights& weights);
  // Under Python's lock: no call takes them from now on.
  void end();

  // Null where these are not the weights; whoever gets them gives them back.
  const Weights* take(const void* address, uint64_t key, int64_t version);
  void give_back();

 private:
  static constexpr uint32_t LENT = 1u << 31;  // below it, how many hold them
  void let_go();

  std::atomic<uint32_t> state_{0};
  std::atomic<const void*> address_{nullptr};
  std::atomic<uint64_t> key_{0};
  Weights weights_{};
};

// Without locks, which a fork could leave taken.
class LentWeights {
 public:
  // Under Python's lock; the table lets `weights.owner` go when it is done. Null where there is no
  // place.
  Lent* lend(const Lent::Weights& weights);
  // Null where they are not lent.
  Lent* take(const void* address, uint64_t key, int64_t version, const Lent::Weights** weights);

 private:
  static constexpr uint64_t PLACES = 4096;
  static constexpr uint64_t NEAR = 16;  // places that weights may stand at
  static uint64_t first_place(const void* address, uint64_t key);

  Lent places_[PLACES];
};

}  // namespace shim
