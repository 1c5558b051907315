// Computes a hash that shows whether memory has changed: see fingerprint.h.
#include "conv/fingerprint.h"

#include "simd/kernels.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

typedef unsigned Words __attribute__((vector_size(BESTOF_VECTOR_BYTES), aligned(1), may_alias));

// 2^32 and 2^64 over the golden ratio, odd: multiplying by them loses nothing.
constexpr unsigned kGolden = 0x9E3779B9u;
constexpr unsigned long long kGolden64 = 0x9E3779B97F4A7C15ull;
constexpr long kVector = BESTOF_VECTOR_BYTES;
// Chains of steps run side by side. A step waits for the one before it: 5 cycles on Zen 4, and 12
// on Intel, where a multiplication of 32-bit words takes 10.
constexpr int kChains = 8;
// Reading this many bytes from L2 takes about as long as waking a thread, 2 microseconds.
constexpr long kBlock = 1 << 16;

// Returns the next state of a chain. It differs if `words` or `state` differ. The rotation carries
// upper bits down, which the multiplication alone never does.
BESTOF_INLINE Words step(Words state, Words words) {
  return (((state << 13) | (state >> 19)) ^ words) * kGolden;
}

BESTOF_INLINE unsigned long long mix(unsigned long long state, unsigned long long word) {
  state = (state ^ word) * kGolden64;
  return state ^ (state >> 32);
}

BESTOF_INLINE Words words_at(const unsigned char* bytes) {
  return *reinterpret_cast<const Words*>(bytes);
}

// Up to kBlock bytes, the last vector filled up with zeros.
BESTOF_INLINE unsigned long long fingerprint_of(const unsigned char* bytes, long count) {
  Words states[kChains];
  for (int i = 0; i < kChains; ++i) {
    for (int lane = 0; lane < kLanes; ++lane)
      states[i][lane] = static_cast<unsigned>(i * kLanes + lane) * kGolden;
  }
  long place = 0;
  for (; place + kChains * kVector <= count; place += kChains * kVector) {
#pragma GCC unroll 8
    for (int i = 0; i < kChains; ++i)
      states[i] = step(states[i], words_at(bytes + place + i * kVector));
  }
  for (; place + kVector <= count; place += kVector)
    states[0] = step(states[0], words_at(bytes + place));
  if (place < count) {
    unsigned char rest[kVector] = {};
    for (long i = 0; i < count - place; ++i) rest[i] = bytes[place + i];
    states[0] = step(states[0], words_at(rest));
  }
  for (int i = 1; i < kChains; ++i) states[0] = step(states[0], states[i]);
  unsigned long long state = static_cast<unsigned long long>(count);
  for (int lane = 0; lane < kLanes; ++lane) state = mix(state, states[0][lane]);
  return state;
}

}  // namespace

unsigned long long fingerprint(const void* memory, long bytes, int threads) {
  const unsigned char* first = static_cast<const unsigned char*>(memory);
  const long blocks = divide_up(bytes, kBlock);
  unsigned long long sum = 0;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : sum) if (blocks > 1)
  for (long block = 0; block < blocks; ++block) {
    const long begin = block * kBlock;
    const unsigned long long found = fingerprint_of(first + begin, smaller(kBlock, bytes - begin));
    sum += mix(static_cast<unsigned long long>(block) * kGolden64, found);
  }
  return sum;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
