// Arithmetic takes longer than memory here: one exponential, or one polynomial of degree 15, an
// element. NaN and infinities lie where PyTorch has them: -infinity times 0 is NaN.
#include "activation/activation.h"

#include "conv/epilogue.h"
#include "simd/bfloat16.h"
#include "simd/decay.h"
#include "simd/kernels.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// Elements that one thread takes at a time.
constexpr long kPart = 8192;

// sqrt(2 / pi), and the factor of the cube in the approximation of GELU by tanh.
constexpr float kBeta = 0.79788456080286536f, kKappa = 0.044715f;
constexpr float kDensity = 0.39894228040143268f;  // 1 / sqrt(2 pi)

BESTOF_INLINE Vec magnitude(Vec v) {
  return reinterpret_cast<Vec>(reinterpret_cast<VecInt>(v) & 0x7FFFFFFF);
}

// The logistic function of v, and 1 less it. Neither is a difference of close numbers.
struct LogisticParts {
  Vec value, rest;
};

BESTOF_INLINE LogisticParts logistic_parts(Vec v) {
  const Vec e = weight_of(-magnitude(v)), large = 1.0f / (1.0f + e), small = e * large;
  return {v < Vec{} ? small : large, v < Vec{} ? large : small};
}

struct Gelu {
  BESTOF_INLINE static Vec value(Vec x) { return gelu(x); }
  BESTOF_INLINE static Vec slope(Vec x) {
    const Vec density = kDensity * weight_of(-0.5f * (x * x));
    return normal_below(x) + x * density;
  }
};

struct GeluTanh {
  BESTOF_INLINE static Vec rise(Vec x) { return (2 * kBeta) * (x + kKappa * (x * x) * x); }
  BESTOF_INLINE static Vec value(Vec x) { return x * logistic(rise(x)); }
  BESTOF_INLINE static Vec slope(Vec x) {
    const LogisticParts s = logistic_parts(rise(x));
    return s.value + x * (s.value * s.rest) * ((2 * kBeta) * (1.0f + (3 * kKappa) * (x * x)));
  }
};

struct Silu {
  BESTOF_INLINE static Vec value(Vec x) { return x * logistic(x); }
  BESTOF_INLINE static Vec slope(Vec x) {
    const LogisticParts s = logistic_parts(x);
    return s.value * (1.0f + x * s.rest);
  }
};

template <class Value, class Result>
inline void each_part(long count, int threads, Value* out, const Result& result) {
#pragma omp parallel for schedule(static) num_threads(threads) if (count > 2 * kPart)
  for (long part = 0; part < divide_up(count, kPart); ++part) {
    const long end = smaller(count, (part + 1) * kPart);
    long i = part * kPart;
    for (; i + kLanes <= end; i += kLanes) store(out + i, result(i));
    if (i < end) store_first(out + i, result(i, end - i), end - i);
  }
}

template <class Curve, class Value>
struct Forward {
  const Value* x;

  BESTOF_INLINE Vec operator()(long i) const { return Curve::value(load(x + i)); }
  BESTOF_INLINE Vec operator()(long i, long n) const { return Curve::value(load_first(x + i, n)); }
};

template <class Curve, class Value>
struct Backward {
  const Value *gradient, *x;

  BESTOF_INLINE Vec operator()(long i) const {
    return load(gradient + i) * Curve::slope(load(x + i));
  }
  BESTOF_INLINE Vec operator()(long i, long n) const {
    return load_first(gradient + i, n) * Curve::slope(load_first(x + i, n));
  }
};

template <class Curve, class Value>
void forward(long count, const void* x, void* y, int threads) {
  const Forward<Curve, Value> result = {static_cast<const Value*>(x)};
  each_part(count, threads, static_cast<Value*>(y), result);
}

template <class Curve, class Value>
void backward(long count, const void* gradient, const void* x, void* slope, int threads) {
  const Backward<Curve, Value> result = {static_cast<const Value*>(gradient),
                                         static_cast<const Value*>(x)};
  each_part(count, threads, static_cast<Value*>(slope), result);
}

template <class Value>
void forward_of(const ActivationProblem& p, const void* x, void* y, int threads) {
  if (p.activation == Activation::kGelu) return forward<Gelu, Value>(p.count, x, y, threads);
  if (p.activation == Activation::kSilu) return forward<Silu, Value>(p.count, x, y, threads);
  forward<GeluTanh, Value>(p.count, x, y, threads);
}

template <class Value>
void backward_of(const ActivationProblem& p, const void* g, const void* x, void* slope, int team) {
  if (p.activation == Activation::kGelu) return backward<Gelu, Value>(p.count, g, x, slope, team);
  if (p.activation == Activation::kSilu) return backward<Silu, Value>(p.count, g, x, slope, team);
  backward<GeluTanh, Value>(p.count, g, x, slope, team);
}

}  // namespace

void activation_forward(const ActivationProblem& p, const void* x, void* y, int threads) {
  if (p.element == Element::kBfloat16) return forward_of<Bfloat16>(p, x, y, threads);
  forward_of<float>(p, x, y, threads);
}

void activation_backward(const ActivationProblem& p, const void* gradient, const void* x,
                         void* slope, int threads) {
  if (p.element == Element::kBfloat16) return backward_of<Bfloat16>(p, gradient, x, slope, threads);
  backward_of<float>(p, gradient, x, slope, threads);
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
