// A number for each filter of weights, by which it shows whether they still are what was packed.
#include "conv/fingerprint.h"

#include "simd/kernels.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

typedef unsigned VecBits __attribute__((vector_size(BESTOF_VECTOR_BYTES), may_alias));

// 2^32 over the golden ratio: its multiples, modulo 2^32, are further apart than any other
// number's.
constexpr unsigned kGolden = 0x9E3779B9u;
constexpr long kSums = 4;  // side by side: an addition takes 4 cycles

// The upper 23 bits as the fraction of a number between 1 and 2.
BESTOF_INLINE Vec factors(VecBits bits) {
  return reinterpret_cast<Vec>((bits >> 9) | 0x3F800000u);
}

BESTOF_INLINE float fingerprint_of(const float* filter, long elements) {
  VecBits places = {};
  for (int lane = 0; lane < kLanes; ++lane) places[lane] = static_cast<unsigned>(lane + 1);
  VecBits bits[kSums];
  Vec sums[kSums] = {};
#pragma GCC unroll 4
  for (int i = 0; i < kSums; ++i) bits[i] = (places + static_cast<unsigned>(i * kLanes)) * kGolden;
  long place = 0;
  for (; place + kSums * kLanes <= elements; place += kSums * kLanes) {
#pragma GCC unroll 4
    for (int i = 0; i < kSums; ++i) {
      sums[i] += load(filter + place + i * kLanes) * factors(bits[i]);
      bits[i] += kGolden * static_cast<unsigned>(kSums * kLanes);
    }
  }
  Vec sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  for (; place < elements; place += kLanes) {
    sum += load_first(filter + place, smaller(kLanes, elements - place)) * factors(bits[0]);
    bits[0] += kGolden * static_cast<unsigned>(kLanes);
  }
  float total = 0.0f;
  for (int lane = 0; lane < kLanes; ++lane) total += sum[lane];
  return total;
}

// Reading so many weights from L2 takes about as long as waking a thread, 2 microseconds.
constexpr long kAlone = 16384;

}  // namespace

void fingerprint(const float* w, long filters, long elements, float* sums, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (filters * elements > kAlone)
  for (long k = 0; k < filters; ++k) sums[k] = fingerprint_of(w + k * elements, elements);
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
