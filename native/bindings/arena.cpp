#include "bindings/arena.h"

#include <sys/mman.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace bestof {
namespace {

constexpr std::size_t kGuard = 16;  // floats
constexpr std::uint32_t kPattern = 0xA5C3F00Du;

struct Arena {
  Memory memory;
  std::size_t floats = 0;
  std::size_t used = 0;
};

thread_local Arena arena;
bool checking = false;

}  // namespace

void Free::operator()(float* memory) const {
  std::free(memory);
}

Memory allocate(std::size_t floats) {
  const std::size_t huge = std::size_t{2} << 20;
  std::size_t bytes = floats * sizeof(float);
  const std::size_t alignment = bytes >= 2 * huge ? huge : 64;
  bytes = (bytes + alignment) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, bytes);
#if defined(MADV_HUGEPAGE)
  if (memory && alignment == huge) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  return Memory(static_cast<float*>(memory));
}

float* scratch(std::size_t floats) {
  if (floats + kGuard > arena.floats) {
    arena.memory.reset();
    arena.floats = 0;
    arena.memory = allocate(floats + kGuard);
    if (!arena.memory) return nullptr;
    arena.floats = floats + kGuard;
  }
  arena.used = floats;
  if (checking) {
    for (std::size_t i = 0; i < floats; ++i) arena.memory[i] = NAN;
    for (std::size_t i = 0; i < kGuard; ++i)
      std::memcpy(&arena.memory[floats + i], &kPattern, sizeof(kPattern));
  }
  return arena.memory.get();
}

void check_scratch(bool on) {
  checking = on;
}

bool guard_stands() {
  if (!checking || !arena.memory) return true;
  for (std::size_t i = 0; i < kGuard; ++i) {
    if (std::memcmp(&arena.memory[arena.used + i], &kPattern, sizeof(kPattern)) != 0) return false;
  }
  return true;
}

}  // namespace bestof
