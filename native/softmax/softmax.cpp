// y = exp(x - highest) / sum(exp(x - highest)).
//
// A maximum of vectors ignores NaN. The exponential of a NaN is NaN, and so is the sum. If all
// numbers are -infinity, or one is infinity, a difference is NaN. PyTorch has NaN in these places.
#include "softmax/softmax.h"

#include "simd/decay.h"
#include "simd/kernels.h"
#include "simd/lanes.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

constexpr float kInfinity = __builtin_inff();

// Below it, starting threads takes longer than they save.
constexpr long kFewest = 1L << 14;

// Floats on the stack of a thread: what the first level of caches holds.
constexpr long kKept = 8192;
constexpr long kMostVectors = 8;

BESTOF_INLINE Vec first_or(const float* p, long n, float rest) {
  const Vec v = load_first(p, n);
  VecInt place;
  for (int i = 0; i < kLanes; ++i) place[i] = i;
  return place < static_cast<int>(n) ? v : broadcast(rest);
}

BESTOF_INLINE float highest_of(const float* x, long size) {
  Vec high[4];
  for (Vec& one : high) one = broadcast(-kInfinity);
  long i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) high[k] = maximum(load(x + i + k * kLanes), high[k]);
  }
  for (; i + kLanes <= size; i += kLanes) high[0] = maximum(load(x + i), high[0]);
  if (i < size) high[1] = maximum(first_or(x + i, size - i, -kInfinity), high[1]);
  return highest_lane(maximum(maximum(high[0], high[1]), maximum(high[2], high[3])));
}

void softmax_row(const float* x, float* y, long size) {
  const float highest = highest_of(x, size);
  Vec sum[2] = {};
  long i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
#pragma GCC unroll 2
    for (int k = 0; k < 2; ++k) {
      const Vec e = weight_of(load(x + i + k * kLanes) - highest);
      store(y + i + k * kLanes, e);
      sum[k] += e;
    }
  }
  for (; i < size; i += kLanes) {
    const long n = smaller(size - i, kLanes);
    // What is behind the last number counts as -infinity, of which the exponential is 0.
    const Vec e = weight_of(first_or(x + i, n, -kInfinity) - highest);
    store_first(y + i, e, n);
    sum[0] += n == kLanes ? e : first_or(reinterpret_cast<const float*>(&e), n, 0.0f);
  }
  const float factor = 1.0f / sum_lanes(sum[0] + sum[1]);
  for (i = 0; i + kLanes <= size; i += kLanes) store(y + i, load(y + i) * factor);
  for (; i < size; ++i) y[i] *= factor;
}

void softmax_rows(const SoftmaxProblem& p, const float* x, float* y, int threads) {
#pragma omp parallel for schedule(static) \
    num_threads(threads) if (p.outer > 1 && p.outer * p.size >= kFewest)
  for (long row = 0; row < p.outer; ++row) softmax_row(x + row * p.size, y + row * p.size, p.size);
}

// Loads vector k of n numbers.
BESTOF_INLINE Vec part_of(const float* p, long k, long n) {
  const long left = n - k * kLanes;
  return left >= kLanes ? load(p + k * kLanes) : load_first(p + k * kLanes, left);
}
BESTOF_INLINE void put_part(float* p, long k, long n, Vec v) {
  const long left = n - k * kLanes;
  if (left >= kLanes) {
    store(p + k * kLanes, v);
  } else {
    store_first(p + k * kLanes, v, left);
  }
}

// Computes n neighbouring columns. If the stack can keep them, x is read and y is written once:
// lines that are far from each other by a power of two push each other out of the caches.
void softmax_columns(const SoftmaxProblem& p, const float* x, float* y, long n, bool keeps) {
  float held[kKept];
  float* const kept = keeps ? held : y;
  const long vectors = divide_up(n, kLanes), step = keeps ? vectors * kLanes : p.inner;
  const long width = keeps ? step : n;
  Vec high[kMostVectors], sum[kMostVectors] = {};
  for (Vec& one : high) one = broadcast(-kInfinity);
  for (long i = 0; i < p.size; ++i) {
    for (long k = 0; k < vectors; ++k) {
      const Vec v = part_of(x + i * p.inner, k, n);
      high[k] = maximum(v, high[k]);
      if (keeps) put_part(kept + i * step, k, width, v);
    }
  }
  const float* const from = keeps ? kept : x;
  for (long i = 0; i < p.size; ++i) {
    for (long k = 0; k < vectors; ++k) {
      const Vec e = weight_of(part_of(from + i * step, k, width) - high[k]);
      put_part(kept + i * step, k, width, e);
      sum[k] += e;
    }
  }
  for (long k = 0; k < vectors; ++k) sum[k] = 1.0f / sum[k];
  for (long i = 0; i < p.size; ++i) {
    for (long k = 0; k < vectors; ++k)
      put_part(y + i * p.inner, k, n, part_of(kept + i * step, k, width) * sum[k]);
  }
}

void softmax_across(const SoftmaxProblem& p, const float* x, float* y, int threads) {
  const long fitting = kKept / (p.size * kLanes);
  const long columns = kLanes * smaller(fitting > 0 ? fitting : kMostVectors, kMostVectors);
  const long blocks = divide_up(p.inner, columns);
#pragma omp parallel for schedule(static) \
    num_threads(threads) if (p.outer * p.size * p.inner >= kFewest)
  for (long block = 0; block < p.outer * blocks; ++block) {
    const long first = block % blocks * columns;
    const long at = block / blocks * p.size * p.inner + first;
    softmax_columns(p, x + at, y + at, smaller(columns, p.inner - first), fitting > 0);
  }
}

}  // namespace

void softmax(const SoftmaxProblem& p, const float* x, float* y, int threads) {
  if (p.inner == 1) return softmax_rows(p, x, y, threads);
  softmax_across(p, x, y, threads);
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
