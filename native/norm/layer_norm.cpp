// Layer norm in training. Sums are in float32 over kBlock vectors, and in double over the blocks.
//
// The forward pass reads a row twice: for both sums of x - centre, and for the result. The centre
// is the mean of the first numbers. If the mean of the row is farther from the centre than a
// deviation, the sums are taken again around it.
//
// The backward pass takes the sums of a row, and then, over several rows at once, the gradient of x
// and the sums for the gradients of scale and shift. PyTorch reads its operands once more for
// these.
#include "norm/layer_norm.h"

#include "norm/partial_vector.h"
#include "simd/kernels.h"
#include "simd/lanes.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// Below it, starting threads takes longer than they save.
constexpr long kFewest = 1L << 15;

// Vectors that are summed in float32.
constexpr long kBlock = 64;

// Rows of the backward pass whose parts of scale and shift are added at once.
constexpr long kRows = 2;

struct Sums {
  double first, second;
};

// Adds up term(i) of size / kLanes vectors and of the rest of a row. `term` gives two vectors.
template <class Term>
BESTOF_INLINE Sums sums_of(long size, const Term& term) {
  Sums total = {0.0, 0.0};
  long i = 0;
  while (i + kLanes <= size) {
    const long end = smaller(i + kBlock * kLanes, size);
    Vec first[2] = {}, second[2] = {};
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
#pragma GCC unroll 2
      for (int k = 0; k < 2; ++k) term(i + k * kLanes, kLanes, first[k], second[k]);
    }
    for (; i + kLanes <= end; i += kLanes) term(i, kLanes, first[0], second[0]);
    total.first += sum_lanes(first[0] + first[1]);
    total.second += sum_lanes(second[0] + second[1]);
    if (i + kLanes > size) break;
  }
  if (i < size) {
    Vec first = {}, second = {};
    term(i, size - i, first, second);
    total.first += sum_lanes(first);
    total.second += sum_lanes(second);
  }
  return total;
}

// Fetches what is written next.
BESTOF_INLINE void prefetch_next(const float* p) {
  __builtin_prefetch(p, 1);
}

// Sets what is behind the first n lanes to zero.
BESTOF_INLINE Vec first_lanes(Vec v, long n) {
  VecInt place;
  for (int i = 0; i < kLanes; ++i) place[i] = i;
  return place < static_cast<int>(n) ? v : Vec{};
}

// The mean is centre + offset.
struct Moments {
  float centre;
  double offset, variance;
};

Moments around(const float* x, const float* y, long size, float centre) {
  const Sums s = sums_of(size, [&](long i, long n, Vec& first, Vec& second) BESTOF_FLAT {
    prefetch(x + i);
    prefetch_next(y + i);
    Vec v = load_n(x + i, n) - centre;
    if (n < kLanes) v = first_lanes(v, n);
    first += v;
    second += v * v;
  });
  const double part = 1.0 / static_cast<double>(size), offset = s.first * part;
  return {centre, offset, s.second * part - offset * offset};
}

Moments moments_of(const float* x, const float* y, long size) {
  const long count = smaller(size, 4 * kLanes);
  float sum = 0.0f;
  for (long i = 0; i < count; ++i) sum += x[i];
  const float first = sum / static_cast<float>(count);
  Moments m = around(x, y, size, first - first == 0.0f ? first : 0.0f);
  const double largest = 3e38;
  const bool finite = m.offset < largest && m.offset > -largest;
  if (finite && m.offset * m.offset > m.variance)
    m = around(x, y, size, m.centre + static_cast<float>(m.offset));
  if (m.variance < 0.0) m.variance = 0.0;  // by rounding, where all numbers are alike
  return m;
}

template <bool kScaled, bool kShifted>
void forward_row(const LayerNormCall& call, const float* x, float* y, long size, const Moments& m,
                 float rstd) {
  const float offset = static_cast<float>(m.offset);
  each_vector(size, [&](long i, long n) BESTOF_FLAT {
    Vec v = (load_n(x + i, n) - m.centre - offset) * rstd;
    if (kScaled) v *= load_n(call.scale + i, n);
    if (kShifted) v += load_n(call.shift + i, n);
    store_n(y + i, v, n);
  });
}

// The gradient of x in a row is rstd * (scaled gradient - the mean of these - normed x * the mean
// of their products with normed x): rstd * scaled gradient + slope * (x - mean) + term.
struct RowGradient {
  const float *gradient, *x;
  float* out;
  float mean, rstd, slope, term;
};

template <bool kScaled>
BESTOF_INLINE void sum_row(RowGradient& row, const float* scale, long size, double part) {
  const Sums s = sums_of(size, [&](long i, long n, Vec& first, Vec& second) BESTOF_FLAT {
    prefetch(row.gradient + i);
    prefetch(row.x + i);
    prefetch_next(row.out + i);
    Vec g = load_n(row.gradient + i, n);
    if (kScaled) g *= load_n(scale + i, n);
    first += g;
    second += g * (load_n(row.x + i, n) - row.mean);  // 0 behind the end, where g is 0
  });
  const double rstd = row.rstd;
  row.slope = static_cast<float>(-s.second * part * (rstd * rstd * rstd));
  row.term = static_cast<float>(-s.first * part * rstd);
}

template <bool kScaled, bool kX, bool kSums, int kCount>
BESTOF_INLINE void write_rows(const RowGradient (&rows)[kRows], const float* scale, float* sums,
                              long size) {
  each_vector(size, [&](long i, long n) BESTOF_FLAT {
    Vec by, of_scale, of_shift;
    if (kScaled && kX) by = load_n(scale + i, n);
    if (kSums) {
      of_scale = load_n(sums + i, n);
      of_shift = load_n(sums + size + i, n);
    }
#pragma GCC unroll 4
    for (int k = 0; k < kCount; ++k) {
      const RowGradient& row = rows[k];
      const Vec g = load_n(row.gradient + i, n), centred = load_n(row.x + i, n) - row.mean;
      const Vec steep = g * row.rstd;
      if (kX) {
        const Vec rest = centred * row.slope + row.term;
        store_n(row.out + i, (kScaled ? steep * by : steep) + rest, n);
      }
      if (kSums) {
        of_scale += steep * centred;
        of_shift += g;
      }
    }
    if (kSums) {
      store_n(sums + i, of_scale, n);
      store_n(sums + size + i, of_shift, n);
    }
  });
}

template <bool kScaled, bool kX, bool kSums>
void backward_rows(const LayerNormProblem& p, const LayerNormBackwardCall& call) {
  const double size = static_cast<double>(p.size);
  const bool few = p.rows * p.size < kFewest;
  const long parts = few ? 1 : smaller(call.threads, larger(p.rows, 1));
#pragma omp parallel for schedule(static, 1) num_threads(parts) if (parts > 1)
  for (long part = 0; part < parts; ++part) {
    float* sums = call.scratch + part * 2 * p.size;
    if (kSums) {
      for (long i = 0; i < 2 * p.size; ++i) sums[i] = 0.0f;
    }
    const long end = part_begin(p.rows, parts, part + 1);
    for (long first = part_begin(p.rows, parts, part); first < end; first += kRows) {
      RowGradient rows[kRows];
      const long count = smaller(kRows, end - first);
      for (long k = 0; k < count; ++k) {
        const long row = first + k, at = row * p.size;
        rows[k] = {call.gradient + at,
                   call.x + at,
                   kX ? call.x_gradient + at : nullptr,
                   call.mean[row],
                   call.rstd[row],
                   0.0f,
                   0.0f};
        if (kX) sum_row<kScaled>(rows[k], call.scale, p.size, 1.0 / size);
      }
      if (count == kRows) {
        write_rows<kScaled, kX, kSums, kRows>(rows, call.scale, sums, p.size);
        continue;
      }
      for (long k = 0; k < count; ++k) {
        const RowGradient one[kRows] = {rows[k]};
        write_rows<kScaled, kX, kSums, 1>(one, call.scale, sums, p.size);
      }
    }
  }
  if (!kSums) return;
  for (long i = 0; i < p.size; ++i) {
    double scale = 0.0, shift = 0.0;
    for (long part = 0; part < parts; ++part) {
      scale += call.scratch[part * 2 * p.size + i];
      shift += call.scratch[part * 2 * p.size + p.size + i];
    }
    if (call.scale_gradient) call.scale_gradient[i] = static_cast<float>(scale);
    if (call.shift_gradient) call.shift_gradient[i] = static_cast<float>(shift);
  }
}

template <bool kScaled>
void backward(const LayerNormProblem& p, const LayerNormBackwardCall& call) {
  const bool sums = call.scale_gradient || call.shift_gradient;
  if (call.x_gradient && sums) return backward_rows<kScaled, true, true>(p, call);
  if (call.x_gradient) return backward_rows<kScaled, true, false>(p, call);
  backward_rows<kScaled, false, true>(p, call);
}

}  // namespace

void layer_norm(const LayerNormProblem& p, const LayerNormCall& call) {
#pragma omp parallel for schedule(static) \
    num_threads(call.threads) if (p.rows > 1 && p.rows * p.size >= kFewest)
  for (long row = 0; row < p.rows; ++row) {
    const float* x = call.x + row * p.size;
    float* y = call.y + row * p.size;
    const Moments m = moments_of(x, y, p.size);
    const float rstd = static_cast<float>(1.0 / __builtin_sqrt(m.variance + p.epsilon));
    call.mean[row] = static_cast<float>(m.centre + m.offset);
    call.rstd[row] = rstd;
    if (call.scale && call.shift) {
      forward_row<true, true>(call, x, y, p.size, m, rstd);
    } else if (call.scale) {
      forward_row<true, false>(call, x, y, p.size, m, rstd);
    } else if (call.shift) {
      forward_row<false, true>(call, x, y, p.size, m, rstd);
    } else {
      forward_row<false, false>(call, x, y, p.size, m, rstd);
    }
  }
}

void layer_norm_backward(const LayerNormProblem& p, const LayerNormBackwardCall& call) {
  if (call.scale) return backward<true>(p, call);
  backward<false>(p, call);
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
