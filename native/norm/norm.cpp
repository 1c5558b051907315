// y = (s - mean) / sqrt(variance + epsilon) * scale + shift, for s = x + residual.
//
// A row is in the first-level cache after the first of three passes: the sum, the squares of what
// differs from the mean, and the result. All sums are in double. Squares of float32 then neither
// overflow nor vanish, and a mean that is large against the deviation costs no accuracy.
#include "norm/norm.h"

#include "simd/bfloat16.h"
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

// A row of x + residual; the sum is taken again in each pass.
template <class Element>
struct Row {
  const Element* x;
  const Element* residual;  // or null

  BESTOF_INLINE Vec vector(long i) const {
    const Vec v = load(x + i);
    return residual ? v + load(residual + i) : v;
  }
  BESTOF_INLINE float one(long i) const {
    const float v = value_of(x[i]);
    return residual ? v + value_of(residual[i]) : v;
  }
};

template <class Element>
double sum_of(const Row<Element>& s, long size) {
  VecDouble low = VecDouble{}, high = VecDouble{};
  long i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Doubles d = widened(s.vector(i));
    low += d.low;
    high += d.high;
  }
  double sum = total(low + high);
  for (; i < size; ++i) sum += s.one(i);
  return sum;
}

template <class Element>
double squares_of(const Row<Element>& s, double mean, long size) {
  VecDouble low = VecDouble{}, high = VecDouble{};
  long i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Doubles d = widened(s.vector(i));
    low += (d.low - mean) * (d.low - mean);
    high += (d.high - mean) * (d.high - mean);
  }
  double sum = total(low + high);
  for (; i < size; ++i) sum += (s.one(i) - mean) * (s.one(i) - mean);
  return sum;
}

template <class Element>
void write_row(const Row<Element>& s, double mean, double factor, const Element* scale,
               const Element* shift, Element* y, long size) {
  long i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Doubles d = widened(s.vector(i));
    Vec v = rounded({(d.low - mean) * factor, (d.high - mean) * factor});
    if (scale) v *= load(scale + i);
    if (shift) v += load(shift + i);
    store(y + i, v);
  }
  for (; i < size; ++i) {
    float v = static_cast<float>((s.one(i) - mean) * factor);
    if (scale) v *= value_of(scale[i]);
    if (shift) v += value_of(shift[i]);
    put(y + i, v);
  }
}

template <class Element>
void normalize_rows(const NormProblem& p, const NormCall& call) {
  const double size = static_cast<double>(p.size);
  const Element *x = static_cast<const Element*>(call.x),
                *residual = static_cast<const Element*>(call.residual);
#pragma omp parallel for schedule(static) \
    num_threads(call.threads) if (p.rows > 1 && p.rows * p.size >= kFewest)
  for (long row = 0; row < p.rows; ++row) {
    const long at = row * p.size;
    const Row<Element> s = {x + at, residual ? residual + at : nullptr};
    const double mean = p.centred ? sum_of(s, p.size) / size : 0.0;
    const double variance = squares_of(s, mean, p.size) / size;
    write_row(s, mean, 1.0 / __builtin_sqrt(variance + p.epsilon),
              static_cast<const Element*>(call.scale), static_cast<const Element*>(call.shift),
              static_cast<Element*>(call.y) + at, p.size);
  }
}

}  // namespace

void normalize(const NormProblem& p, const NormCall& call) {
  if (p.element == Element::kBfloat16) return normalize_rows<Bfloat16>(p, call);
  normalize_rows<float>(p, call);
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
