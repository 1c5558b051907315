// The key of a call, and the kernel that answers calls with this key.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "native.h"

namespace shim {

// Everything that a decision depends on, as words.
class Call {
 public:
  void add(int64_t word) { words_[used_++] = word; }
  void add(const int64_t* words, int count) {
    std::memcpy(words_ + used_, words, count * sizeof(int64_t));
    used_ += count;
  }
  bool has_place(int words) const { return used_ + words <= MOST; }
  bool operator==(const Call& other) const {
    return used_ == other.used_ && std::memcmp(words_, other.words_, used_ * sizeof(int64_t)) == 0;
  }
  uint64_t hash() const {
    uint64_t mixed = used_;
    for (int place = 0; place < used_; ++place) {
      mixed = (mixed ^ static_cast<uint64_t>(words_[place])) * 0x9E3779B97F4A7C15ULL;
      mixed ^= mixed >> 29;
    }
    return mixed;
  }

 private:
  static constexpr int MOST = 80;  // gradients of attention have 73
  int64_t words_[MOST];
  int used_ = 0;
};

// A count that any thread may raise.
struct Count {
  std::atomic<uint64_t> calls{0};
};

// One key and its kernel. It lives as long as the table, so readers need no lock.
struct Known {
  Call call;
  std::vector<std::shared_ptr<Count>> counts;
  std::atomic<uint64_t> generation;            // of the decisions that it was noted under; 0 before
  std::atomic<const Native*> native{nullptr};  // what answers; null for PyTorch's own kernel
  std::atomic<uint32_t> turn{0};
  std::atomic<uint32_t> met{0};  // calls before the first decision, where they are counted
  // Everything that ever answered, because a call may still use it. Only under Python's lock.
  std::vector<std::shared_ptr<const Native>> answered{};

  void count() {
    for (const auto& count : counts) count->calls.fetch_add(1, std::memory_order_relaxed);
  }
  // Under Python's lock.
  void answer_by(std::shared_ptr<const Native> wanted) {
    native.store(wanted.get(), std::memory_order_release);
    for (const auto& before : answered) {
      if (before == wanted) return;
    }
    if (wanted != nullptr) answered.push_back(std::move(wanted));
  }
};

// A hash table without locks, because a fork could leave one taken. Places are filled and never
// emptied; `forget` raises one number, and entries of older generations are not found.
class KnownCalls {
 public:
  // Half of the places may be filled.
  explicit KnownCalls(uint64_t places)
      : count_(places), places_(new std::atomic<Known*>[places] {}) {}
  ~KnownCalls() {
    for (uint64_t place = 0; place < count_; ++place) delete places_[place].load();
  }

  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }
  void forget() { generation_.fetch_add(1, std::memory_order_acq_rel); }

  bool is_full() const { return held_.load(std::memory_order_relaxed) >= count_ / 2; }

  // Returns null for unknown calls, and for calls noted before the last decision.
  Known* find(const Call& call) const {
    Known* known = place_of(call).load(std::memory_order_acquire);
    return known != nullptr && known->generation.load(std::memory_order_acquire) == generation()
               ? known
               : nullptr;
  }

  // Returns the entry of a call, made here if it is met for the first time; null if there is no
  // place left. Its decision holds only if its generation is that of the table.
  Known* meet(const Call& call) {
    std::atomic<Known*>& place = place_of(call);
    Known* known = place.load(std::memory_order_acquire);
    if (known != nullptr || is_full()) return known;
    return insert(place, new Known{call, {}, {0}});
  }

  // Under Python's lock. `generation` was read before the decisions. `native` is null for PyTorch's
  // own kernel. Returns false if there is no place left.
  bool note(const Call& call, uint64_t generation, std::vector<std::shared_ptr<Count>> counts,
            std::shared_ptr<const Native> native) {
    std::atomic<Known*>& place = place_of(call);
    Known* known = place.load(std::memory_order_acquire);
    if (known == nullptr) known = insert(place, new Known{call, {}, {0}});
    if (known == nullptr) return false;
    // Calls read the counts of a decided entry alone.
    if (known->generation.load(std::memory_order_acquire) == 0) known->counts = std::move(counts);
    known->answer_by(std::move(native));
    known->generation.store(generation, std::memory_order_release);
    return true;
  }

 private:
  // Fills a place that was empty, and takes `made`. Returns what fills it; null, without a change,
  // if the table is full or another thread has filled the place with another call.
  Known* insert(std::atomic<Known*>& place, Known* made) {
    Known* other = nullptr;
    if (held_.fetch_add(1) < count_ / 2 &&
        place.compare_exchange_strong(other, made, std::memory_order_acq_rel))
      return made;
    held_.fetch_sub(1);
    Known* found = other != nullptr && other->call == made->call ? other : nullptr;
    delete made;
    return found;
  }

  // The place of a call, filled or not.
  std::atomic<Known*>& place_of(const Call& call) const {
    for (uint64_t place = call.hash();; ++place) {
      std::atomic<Known*>& here = places_[place % count_];
      const Known* known = here.load(std::memory_order_acquire);
      if (known == nullptr || known->call == call) return here;
    }
  }

  const uint64_t count_;
  const std::unique_ptr<std::atomic<Known*>[]> places_;
  std::atomic<uint64_t> held_{0};
  std::atomic<uint64_t> generation_{1};
};

}  // namespace shim
