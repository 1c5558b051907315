// LAMB (You et al., 2020, algorithm 2). The second pass computes u again from the moments: that
// reads 12 bytes an element and writes 4, and to keep u between the passes would move 8 more than
// it saves. Both passes move 40 bytes an element. PyTorch's foreach operations move 124.
#include "optim/lamb.h"

#include <omp.h>

#include "simd/kernels.h"
#include "simd/vector.h"

#if defined(__SSE__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace bestof {
namespace BESTOF_TARGET {
namespace {

constexpr float kLargest = 3.40282346638528859812e+38f;

// Below it, starting threads takes longer than they save.
constexpr long kFewest = 4 * kLambPart;

typedef float HalfVec __attribute__((vector_size(BESTOF_VECTOR_BYTES / 2), may_alias));
typedef double VecDouble __attribute__((vector_size(BESTOF_VECTOR_BYTES), may_alias));

BESTOF_INLINE Vec square_root(Vec x) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(_mm512_sqrt_ps(reinterpret_cast<__m512>(x)));
#elif defined(__AVX2__)
  return reinterpret_cast<Vec>(_mm256_sqrt_ps(reinterpret_cast<__m256>(x)));
#elif defined(__SSE__)
  return reinterpret_cast<Vec>(_mm_sqrt_ps(reinterpret_cast<__m128>(x)));
#elif defined(__ARM_NEON) && defined(__aarch64__)
  return reinterpret_cast<Vec>(vsqrtq_f32(reinterpret_cast<float32x4_t>(x)));
#else
  for (long i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

// Squares are summed in double: float would overflow from 1.8e19 on, and lose what is below 1e-23.
BESTOF_INLINE VecDouble plus_squares(VecDouble sum, Vec x) {
  HalfVec halves[2];
  __builtin_memcpy(halves, &x, sizeof x);
  const VecDouble low = __builtin_convertvector(halves[0], VecDouble);
  const VecDouble high = __builtin_convertvector(halves[1], VecDouble);
  return sum + low * low + high * high;
}

BESTOF_INLINE double total(VecDouble v) {
  double sum = 0.0;
  for (long i = 0; i < kLanes / 2; ++i) sum += v[i];
  return sum;
}

BESTOF_INLINE Vec change(const LambProblem& p, Vec x, Vec m, Vec v) {
  return m / (square_root(v) * p.factor + p.term) + x * p.decay;
}

struct Moments {
  Vec m, v;
};

BESTOF_INLINE Moments moments(const LambProblem& p, Vec g, Vec m, Vec v) {
  return {m * p.first + g * p.first_rest,
          at_most(v * p.second + (g * p.second_rest) * g, broadcast(kLargest))};
}

inline void sum_part(const LambProblem& p, long begin, long end, const float* x, const float* g,
                     float* m, float* v, double* sums) {
  VecDouble length = VecDouble{}, norm = VecDouble{};
  long i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    const Moments now = moments(p, load(g + i), load(m + i), load(v + i));
    store(m + i, now.m);
    store(v + i, now.v);
    const Vec old = load(x + i);
    length = plus_squares(length, old);
    norm = plus_squares(norm, change(p, old, now.m, now.v));
  }
  double rest[2] = {};
  if (i < end) {
    const long n = end - i;
    const Moments now =
        moments(p, load_first(g + i, n), load_first(m + i, n), load_first(v + i, n));
    store_first(m + i, now.m, n);
    store_first(v + i, now.v, n);
    const Vec old = load_first(x + i, n), u = change(p, old, now.m, now.v);
    // The lanes behind hold 0 / term, which is NaN if eps is 0.
    for (long j = 0; j < n; ++j) {
      rest[0] += static_cast<double>(old[j]) * old[j];
      rest[1] += static_cast<double>(u[j]) * u[j];
    }
  }
  sums[0] = total(length) + rest[0];
  sums[1] = total(norm) + rest[1];
}

inline void update_part(const LambProblem& p, float rate, long begin, long end, const float* m,
                        const float* v, float* x) {
  long i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    const Vec old = load(x + i);
    store(x + i, old - rate * change(p, old, load(m + i), load(v + i)));
  }
  if (i < end) {
    const long n = end - i;
    const Vec old = load_first(x + i, n);
    const Vec u = change(p, old, load_first(m + i, n), load_first(v + i, n));
    store_first(x + i, old - rate * u, n);
  }
}

}  // namespace

void lamb_moments(const LambProblem& p, const float* x, const float* g, float* m, float* v,
                  double* sums, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (p.count >= kFewest)
  for (long part = 0; part < lamb_parts(p.count); ++part) {
    const long begin = part * kLambPart, end = smaller(p.count, begin + kLambPart);
    sum_part(p, begin, end, x, g, m, v, sums + 2 * part);
  }
}

void lamb_update(const LambProblem& p, float rate, const float* m, const float* v, float* x,
                 int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (p.count >= kFewest)
  for (long part = 0; part < lamb_parts(p.count); ++part) {
    const long begin = part * kLambPart, end = smaller(p.count, begin + kLambPart);
    update_part(p, rate, begin, end, m, v, x);
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
