// y = (s - mean) / sqrt(variance + epsilon) * scale + shift, for s = x + residual.
//
// A row is in the first-level cache after the first of three passes: the sum, the squares of what
// differs from the mean, and the result. All sums are in double. Squares of float32 then neither
// overflow nor vanish, and a mean that is large against the deviation costs no accuracy.
#include "norm/norm.h"

#include "simd/kernels.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// Below it, starting threads takes longer than they save.
constexpr long kFewest = 1L << 15;

typedef float HalfVec __attribute__((vector_size(BESTOF_VECTOR_BYTES / 2), may_alias));
typedef double VecDouble __attribute__((vector_size(BESTOF_VECTOR_BYTES), may_alias));

struct Doubles {
  VecDouble low, high;
};

BESTOF_INLINE Doubles widened(Vec v) {
  HalfVec halves[2];
  __builtin_memcpy(halves, &v, sizeof v);
  return {__builtin_convertvector(halves[0], VecDouble),
          __builtin_convertvector(halves[1], VecDouble)};
}

BESTOF_INLINE Vec rounded(Doubles d) {
  const HalfVec halves[2] = {__builtin_convertvector(d.low, HalfVec),
                             __builtin_convertvector(d.high, HalfVec)};
  Vec v;
  __builtin_memcpy(&v, halves, sizeof v);
  return v;
}

BESTOF_INLINE double total(VecDouble v) {
  double sum = 0.0;
  for (long i = 0; i < kLanes / 2; ++i) sum += v[i];
  return sum;
}

inline void add_row(const float* x, const float* residual, float* y, long size) {
  long i = 0;
  for (; i + kLanes <= size; i += kLanes) store(y + i, load(x + i) + load(residual + i));
  for (; i < size; ++i) y[i] = x[i] + residual[i];
}

inline double sum_of(const float* s, long size) {
  VecDouble low = VecDouble{}, high = VecDouble{};
  long i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Doubles d = widened(load(s + i));
    low += d.low;
    high += d.high;
  }
  double sum = total(low + high);
  for (; i < size; ++i) sum += s[i];
  return sum;
}

inline double squares_of(const float* s, double mean, long size) {
  VecDouble low = VecDouble{}, high = VecDouble{};
  long i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Doubles d = widened(load(s + i));
    low += (d.low - mean) * (d.low - mean);
    high += (d.high - mean) * (d.high - mean);
  }
  double sum = total(low + high);
  for (; i < size; ++i) sum += (s[i] - mean) * (s[i] - mean);
  return sum;
}

inline void write_row(const float* s, double mean, double factor, const NormCall& call, float* y,
                      long size) {
  long i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Doubles d = widened(load(s + i));
    Vec v = rounded({(d.low - mean) * factor, (d.high - mean) * factor});
    if (call.scale) v *= load(call.scale + i);
    if (call.shift) v += load(call.shift + i);
    store(y + i, v);
  }
  for (; i < size; ++i) {
    float v = static_cast<float>((s[i] - mean) * factor);
    if (call.scale) v *= call.scale[i];
    if (call.shift) v += call.shift[i];
    y[i] = v;
  }
}

}  // namespace

void normalize(const NormProblem& p, const NormCall& call) {
  const double size = static_cast<double>(p.size);
#pragma omp parallel for schedule(static) \
    num_threads(call.threads) if (p.rows > 1 && p.rows * p.size >= kFewest)
  for (long row = 0; row < p.rows; ++row) {
    const long at = row * p.size;
    const float* s = call.x + at;
    if (call.residual) {
      add_row(s, call.residual + at, call.y + at, p.size);
      s = call.y + at;
    }
    const double mean = p.centred ? sum_of(s, p.size) / size : 0.0;
    const double variance = squares_of(s, mean, p.size) / size;
    write_row(s, mean, 1.0 / __builtin_sqrt(variance + p.epsilon), call, call.y + at, p.size);
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
