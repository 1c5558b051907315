// y = (s - mean) / sqrt(variance + epsilon) * scale + shift, for s = x + residual.
//
// A row is in the first-level cache after the first of three passes: the sum, the squares of what
// differs from the mean, and the result. All sums are in double. Squares of float32 then neither
// overflow nor vanish, and a mean that is large against the deviation costs no accuracy.
//
// Rows of bfloat16 take two passes in float32 (`FastRow`), if their numbers are far enough from the
// ends of its range. Else the three passes.
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

// Even and odd ones of 2 * kLanes neighbours. To cut integers of two elements apart takes one
// instruction a vector, to join them one and a half. To convert halves takes two, and three.
struct EvenOdd {
  Vec even, odd;
};

constexpr int kUpper = static_cast<int>(0xFFFF0000);

// Loads 2 * kLanes elements, or without `kWhole` the first n; the others are zero.
template <bool kWhole>
BESTOF_INLINE EvenOdd load_even_odd(const Bfloat16* p, long n) {
  VecInt pairs = VecInt{};
  if constexpr (kWhole) {
    pairs = load_pairs(p);
  } else {
#if defined(__AVX512F__)
    const auto wanted = static_cast<__mmask32>((1ul << n) - 1);
    pairs = reinterpret_cast<VecInt>(_mm512_maskz_loadu_epi16(wanted, p));
#else
    __builtin_memcpy(&pairs, p, n * sizeof(Bfloat16));
#endif
  }
  return {reinterpret_cast<Vec>(pairs << 16), reinterpret_cast<Vec>(pairs & kUpper)};
}

// Rounds the upper halves to the nearest value, and a tie to the even one. NaN stays NaN only if
// its lower half is zero, as in NaN of bfloat16 and in those that processors make.
BESTOF_INLINE VecInt round_upper(Vec v) {
  const VecInt bits = reinterpret_cast<VecInt>(v);
  return bits + 0x7FFF + ((bits >> 16) & 1);
}

template <bool kWhole>
BESTOF_INLINE void store_even_odd(Bfloat16* p, EvenOdd v, long n) {
  const VecInt even = (round_upper(v.even) >> 16) & 0xFFFF, odd = round_upper(v.odd) & kUpper;
  const VecInt pairs = even | odd;
  if constexpr (kWhole) {
    *reinterpret_cast<VecOfPairs*>(p) = pairs;
  } else {
#if defined(__AVX512F__)
    const auto wanted = static_cast<__mmask32>((1ul << n) - 1);
    _mm512_mask_storeu_epi16(p, wanted, reinterpret_cast<__m512i>(pairs));
#else
    __builtin_memcpy(p, &pairs, n * sizeof(Bfloat16));
#endif
  }
}

// Sets what is behind the first n elements to zero.
BESTOF_INLINE EvenOdd first_of(EvenOdd v, long n) {
  VecInt place;
  for (int i = 0; i < kLanes; ++i) place[i] = 2 * i;
  const int count = static_cast<int>(n);
  return {place < count ? v.even : Vec{}, place < count - 1 ? v.odd : Vec{}};
}

// Statistics of a row of bfloat16 in one pass over s - centre, of which the sums are in float32 by
// blocks and in double over the blocks. The centre is the mean of the first elements, rounded to
// bfloat16: few differences are then rounded. Those from a centre of 24 bits are, all alike.
//
// What float32 rounds: each difference once; 8 additions of squares to a sum; the even to the odd
// ones. So the mean square of s - centre is right to (2 + 8 + 1) * 2^-24 at worst, and the variance
// to twice that, because `holds` bounds the offset by the deviation. The deviation has half the
// error of the variance: 11 * 2^-24. The quotient adds 3 * 2^-24. Rounding the result to bfloat16
// errs by up to 2^-8. The mean is right to 16 * 2^-24 deviations at worst; of random numbers, to
// 2^-26 if there are 96, and 2^-31 if there are 768.
struct Statistics {
  double offset, variance;  // offset: the mean less the centre

  BESTOF_INLINE bool is_near() const { return offset * offset <= variance; }
  // False near the ends of the range of float32, where squares overflow or vanish, and for NaN.
  BESTOF_INLINE bool holds() const { return is_near() && variance > 1e-24 && variance < 1e37; }
};

struct FastRow {
  Row<Bfloat16> s;
  long size;

  static constexpr long kStep = 2 * kLanes, kBlock = 8 * kStep;

  template <bool kWhole>
  BESTOF_INLINE EvenOdd at(long i, long n) const {
    EvenOdd v = load_even_odd<kWhole>(s.x + i, n);
    if (s.residual) {
      const EvenOdd added = load_even_odd<kWhole>(s.residual + i, n);
      v = {v.even + added.even, v.odd + added.odd};
    }
    return v;
  }

  BESTOF_INLINE float first_mean() const {
    const long count = smaller(size / kStep, 4) * kStep;
    Vec sum = Vec{};
    for (long i = 0; i < count; i += kStep) {
      const EvenOdd v = at<true>(i, kStep);
      sum += v.even + v.odd;
    }
    const Doubles d = widened(sum);
    const float mean = static_cast<float>(total(d.low + d.high) / static_cast<double>(count));
    unsigned bits;
    __builtin_memcpy(&bits, &mean, sizeof bits);
    return value_of(Bfloat16{static_cast<unsigned short>((bits + 0x8000) >> 16)});
  }

  template <bool kCentred>
  BESTOF_INLINE static void add(EvenOdd v, EvenOdd& sum, EvenOdd& square) {
    if (kCentred) sum = {sum.even + v.even, sum.odd + v.odd};
    square = {square.even + v.even * v.even, square.odd + v.odd * v.odd};
  }

  // Without `kCentred`, the offset is 0 for the centre 0.
  template <bool kCentred>
  __attribute__((noinline)) Statistics around(float centre) const {
    VecDouble sums = VecDouble{}, squares = VecDouble{};
    const long whole = size - size % kStep;
    for (long i = 0; i < size;) {
      EvenOdd sum = {Vec{}, Vec{}}, square = {Vec{}, Vec{}};
      const long end = smaller(i + kBlock, size);
      for (; i < smaller(end, whole); i += kStep) {
        const EvenOdd v = at<true>(i, kStep);
        add<kCentred>({v.even - centre, v.odd - centre}, sum, square);
      }
      if (i < end) {
        const EvenOdd v = at<false>(i, end - i);
        add<kCentred>(first_of({v.even - centre, v.odd - centre}, end - i), sum, square);
        i = end;
      }
      if (kCentred) {
        const Doubles d = widened(sum.even + sum.odd);
        sums += d.low + d.high;
      }
      const Doubles d = widened(square.even + square.odd);
      squares += d.low + d.high;
    }
    const double sum = total(sums), square = total(squares);
    const double part = 1.0 / static_cast<double>(size), offset = kCentred ? sum * part : 0.0;
    return {offset, square * part - offset * offset};
  }

  // Rounds the quotient three times: the difference, the factor, and their product less the rest.
  BESTOF_INLINE void write(float centre, float offset, float factor, const Bfloat16* scale,
                           const Bfloat16* shift, Bfloat16* y) const {
    const float rest = -offset * factor;
    long i = 0;
    for (; i + kStep <= size; i += kStep)
      write_step<true>(i, kStep, centre, factor, rest, scale, shift, y);
    if (i < size) write_step<false>(i, size - i, centre, factor, rest, scale, shift, y);
  }

  template <bool kWhole>
  BESTOF_INLINE void write_step(long i, long n, float centre, float factor, float rest,
                                const Bfloat16* scale, const Bfloat16* shift, Bfloat16* y) const {
    EvenOdd v = at<kWhole>(i, n);
    v = {(v.even - centre) * factor + rest, (v.odd - centre) * factor + rest};
    EvenOdd by, added;
    if (scale) by = load_even_odd<kWhole>(scale + i, n);
    if (shift) added = load_even_odd<kWhole>(shift + i, n);
    if (scale && shift) {  // one instruction
      v = {v.even * by.even + added.even, v.odd * by.odd + added.odd};
    } else if (scale) {
      v = {v.even * by.even, v.odd * by.odd};
    } else if (shift) {
      v = {v.even + added.even, v.odd + added.odd};
    }
    store_even_odd<kWhole>(y + i, v, n);
  }
};

// Returns false, and writes nothing, if float32 does not hold the row.
BESTOF_INLINE bool normalize_fast(const Row<float>&, const NormProblem&, const NormCall&, float*) {
  return false;
}
BESTOF_INLINE bool normalize_fast(const Row<Bfloat16>& s, const NormProblem& p,
                                  const NormCall& call, Bfloat16* y) {
  const FastRow row = {s, p.size};
  if (p.size < FastRow::kStep) return false;
  float centre = p.centred ? row.first_mean() : 0.0f;
  Statistics found = p.centred ? row.around<true>(centre) : row.around<false>(centre);
  if (!found.is_near()) {  // The first elements are unlike the rest.
    centre += static_cast<float>(found.offset);
    found = row.around<true>(centre);
  }
  const double factor = 1.0 / __builtin_sqrt(found.variance + p.epsilon);
  if (!found.holds() || !InFloat::holds(factor)) return false;
  row.write(centre, static_cast<float>(found.offset), static_cast<float>(factor),
            static_cast<const Bfloat16*>(call.scale), static_cast<const Bfloat16*>(call.shift), y);
  return true;
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
    Element* y = static_cast<Element*>(call.y) + at;
    if (normalize_fast(s, p, call, y)) continue;
    const double mean = p.centred ? sum_of(s, p.size) / size : 0.0;
    const double variance = squares_of(s, mean, p.size) / size;
    const InDouble quotient = {mean, 1.0 / __builtin_sqrt(variance + p.epsilon)};
    const auto* scale = static_cast<const Element*>(call.scale);
    const auto* shift = static_cast<const Element*>(call.shift);
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
