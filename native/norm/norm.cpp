// y = (s - mean) / sqrt(variance + epsilon) * scale + shift, for s = x + residual.
//
// A row is in the first-level cache after the first of three passes: the sum, the squares of what
// differs from the mean, and the result. All sums are in double. Squares of float32 then neither
// overflow nor vanish, and a mean that is large against the deviation costs no accuracy. Results of
// bfloat16 are computed in float32, which their own rounding hides.
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

template <int kCount>
struct DoubleLanes {
  typedef double Type __attribute__((vector_size(kCount * sizeof(double)), may_alias));
};

struct Doubles {
  VecDouble low, high;
};

// GCC converts vectors of AVX-512 by quarters, and joins halves in memory.
BESTOF_INLINE Doubles widened(Vec v) {
#if defined(__AVX512F__)
  const auto all = reinterpret_cast<__m512>(v);
  return {reinterpret_cast<VecDouble>(_mm512_cvtps_pd(_mm512_castps512_ps256(all))),
          reinterpret_cast<VecDouble>(_mm512_cvtps_pd(_mm512_extractf32x8_ps(all, 1)))};
#else
  HalfVec halves[2];
  __builtin_memcpy(halves, &v, sizeof v);
  return {__builtin_convertvector(halves[0], VecDouble),
          __builtin_convertvector(halves[1], VecDouble)};
#endif
}

BESTOF_INLINE Vec rounded(Doubles d) {
#if defined(__AVX512F__)
  const __m256 low = _mm512_cvtpd_ps(reinterpret_cast<__m512d>(d.low));
  const __m256 high = _mm512_cvtpd_ps(reinterpret_cast<__m512d>(d.high));
  return reinterpret_cast<Vec>(_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1));
#else
  const HalfVec halves[2] = {__builtin_convertvector(d.low, HalfVec),
                             __builtin_convertvector(d.high, HalfVec)};
  Vec v;
  __builtin_memcpy(&v, halves, sizeof v);
  return v;
#endif
}

// Adds halves to each other. One number after the other took a fifth of a row of 96.
template <int kCount = kLanes / 2>
BESTOF_INLINE double total(typename DoubleLanes<kCount>::Type v) {
  if constexpr (kCount == 2) {
    return v[0] + v[1];
  } else {
    typename DoubleLanes<kCount / 2>::Type halves[2];
    __builtin_memcpy(halves, &v, sizeof v);
    return total<kCount / 2>(halves[0] + halves[1]);
  }
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

// (s - mean) * factor, rounded once.
struct InDouble {
  double mean, factor;

  BESTOF_INLINE Vec operator()(Vec v) const {
    const Doubles d = widened(v);
    return rounded({(d.low - mean) * factor, (d.high - mean) * factor});
  }
  BESTOF_INLINE float operator()(float v) const { return static_cast<float>((v - mean) * factor); }
};

// The same with four roundings. s - mean is exact if both are near each other, so the mean needs
// what its own rounding took.
struct InFloat {
  float mean, rest, factor;

  explicit InFloat(const InDouble& d)
      : mean(static_cast<float>(d.mean)),
        rest(static_cast<float>(d.mean - mean)),
        factor(static_cast<float>(d.factor)) {}
  template <class Number>
  BESTOF_INLINE Number operator()(Number v) const {
    return (v - mean - rest) * factor;
  }
  // Rows whose numbers are near the ends of the range of float32 need double.
  static bool holds(double factor) { return factor > 1e-30 && factor < 1e30; }
};

template <class Element, class Quotient>
void write_row(const Row<Element>& s, const Quotient& quotient, const Element* scale,
               const Element* shift, Element* y, long size) {
  long i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    Vec v = quotient(s.vector(i));
    if (scale) v *= load(scale + i);
    if (shift) v += load(shift + i);
    store(y + i, v);
  }
  for (; i < size; ++i) {
    float v = quotient(s.one(i));
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
    const InDouble quotient = {mean, 1.0 / __builtin_sqrt(variance + p.epsilon)};
    const auto* scale = static_cast<const Element*>(call.scale);
    const auto* shift = static_cast<const Element*>(call.shift);
    Element* y = static_cast<Element*>(call.y) + at;
    if (sizeof(Element) < sizeof(float) && InFloat::holds(quotient.factor)) {
      write_row(s, InFloat(quotient), scale, shift, y, p.size);
    } else {
      write_row(s, quotient, scale, shift, y, p.size);
    }
  }
}

}  // namespace

void normalize(const NormProblem& p, const NormCall& call) {
  if (p.element == Element::kBfloat16) return normalize_rows<Bfloat16>(p, call);
  normalize_rows<float>(p, call);
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
