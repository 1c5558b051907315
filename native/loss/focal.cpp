// Focal loss (Lin et al., 2017) on logits, stable for every finite one: everything is computed from e = exp(-|x|) <= 1,
// and no difference of close numbers is taken where targets are 0 or 1.
#include "loss/focal.h"

#include <omp.h>

#include "simd/kernels.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// Beyond it exp(-x) is below the smallest normal float, and `exponential` clamps.
constexpr float kFarthest = 87.0f;

// Vectors between two looks at whether all targets are 0 or 1.
constexpr long kRun = 16;

BESTOF_INLINE Vec magnitude(Vec x) {
  return x < Vec{} ? -x : x;
}

// exp(-x) for x >= 0, and 0 where that is no normal number.
BESTOF_INLINE Vec decay(Vec x) {
  return x > broadcast(kFarthest) ? Vec{} : exponential(-x);
}

// log(1 + e) for e in [0, 1], by a minimax polynomial for log(1 + e) / e; relative error below 2e-7.
BESTOF_INLINE Vec log1p(Vec e) {
  Vec p = broadcast(0.00523262929f);
  p = p * e - 0.0295049867f;
  p = p * e + 0.0782255573f;
  p = p * e - 0.1366321399f;
  p = p * e + 0.1910599283f;
  p = p * e - 0.2484297904f;
  p = p * e + 0.3331909649f;
  p = p * e - 0.4999949313f;
  p = p * e + 0.9999999699f;
  return p * e;
}

// How q^gamma is computed.
enum class Power { kZero, kOne, kTwo, kAny };

struct Results {
  Vec loss, gradient;
};

// Targets of 0 or 1. With z the logit seen from the own class, q = sigmoid(-z) and p = sigmoid(z):
// ce = -log p, L = q^gamma ce, dL/dz = -q^gamma (gamma p ce + q).
template <Power kPower>
BESTOF_INLINE Results hard(Vec x, Vec y, float gamma) {
  const Vec sign = 2.0f * y - 1.0f;
  const Vec z = sign * x, far = magnitude(z);
  const Vec e = decay(far), r = 1.0f / (1.0f + e), rest = e * r;
  const Vec p = z < Vec{} ? rest : r, q = z < Vec{} ? r : rest;
  const Vec tail = log1p(e);
  const Vec ce = at_least(-z, Vec{}) + tail;
  // Far away p or ce is 0, and the other may be infinite.
  const Vec product = far > broadcast(kFarthest) ? Vec{} : p * ce;
  Vec power = broadcast(1.0f);
  if constexpr (kPower == Power::kOne) power = q;
  if constexpr (kPower == Power::kTwo) power = q * q;
  if constexpr (kPower == Power::kAny) power = decay(gamma * (at_least(z, Vec{}) + tail));  // -log q = max(z, 0) + tail
  return {power * ce, -sign * power * (gamma * product + q)};
}

BESTOF_INLINE Vec raise(Vec base, float exponent) {
  Vec result = base;
  for (long i = 0; i < kLanes; ++i) result[i] = __builtin_powf(base[i], exponent);
  return result;
}

// Targets between: om = p (1 - y) + q y, ce = (1 - y) softplus(x) + y softplus(-x), L = om^gamma ce.
template <Power kPower>
BESTOF_INLINE Results soft(Vec x, Vec y, float gamma) {
  const Vec far = magnitude(x), e = decay(far), r = 1.0f / (1.0f + e), rest = e * r;
  const Vec p = x < Vec{} ? rest : r, q = x < Vec{} ? r : rest;
  const Vec tail = log1p(e), other = 1.0f - y;
  const Vec ce = other * (at_least(x, Vec{}) + tail) + y * (at_least(-x, Vec{}) + tail);
  const Vec product = far > broadcast(kFarthest) ? Vec{} : p * q * ce;
  const Vec om = p * other + q * y, slope = p * other - q * y;
  Vec power = broadcast(1.0f), less = Vec{};  // om^gamma, om^(gamma - 1)
  if constexpr (kPower == Power::kOne) power = om, less = broadcast(1.0f);
  if constexpr (kPower == Power::kTwo) power = om * om, less = om;
  if constexpr (kPower == Power::kAny) power = raise(om, gamma), less = raise(om, gamma - 1.0f);
  return {power * ce, gamma * less * (1.0f - 2.0f * y) * product + power * slope};
}

template <Power kPower, bool kSoft>
BESTOF_INLINE Results focal(const FocalProblem& p, Vec x, Vec y) {
  Results results = hard<kPower>(x, y, p.gamma);
  if constexpr (kSoft) {
    const Results between = soft<kPower>(x, y, p.gamma);
    const VecInt sure = (y == Vec{}) | (y == broadcast(1.0f));
    results.loss = sure ? results.loss : between.loss;
    results.gradient = sure ? results.gradient : between.gradient;
  }
  Vec weight = broadcast(p.scale);
  if (p.alpha >= 0.0f) weight *= p.alpha * y + (1.0f - p.alpha) * (1.0f - y);
  results.loss *= weight;
  results.gradient *= weight;
  return results;
}

BESTOF_INLINE double total(Vec v) {
  double sum = 0.0;
  for (long i = 0; i < kLanes; ++i) sum += v[i];
  return sum;
}

// `count` elements, at most kRun vectors; returns the sum of their losses.
template <Power kPower, bool kSoft>
inline double run(const FocalProblem& p, const float* x, const float* y, long count, float* loss, float* gradient) {
  Vec sum = Vec{};
  for (long i = 0; i < count; i += kLanes) {
    const long n = smaller(count - i, kLanes);
    if (n == kLanes) {
      const Results results = focal<kPower, kSoft>(p, load(x + i), load(y + i));
      sum += results.loss;
      if (loss) store(loss + i, results.loss);
      store(gradient + i, results.gradient);
    } else {
      const Results results = focal<kPower, kSoft>(p, load_first(x + i, n), load_first(y + i, n));
      for (long j = 0; j < n; ++j) sum[j] += results.loss[j];
      if (loss) store_first(loss + i, results.loss, n);
      store_first(gradient + i, results.gradient, n);
    }
  }
  return total(sum);
}

BESTOF_INLINE bool any_soft(const float* y, long count) {
  VecInt soft = VecInt{};
  for (long i = 0; i < count; i += kLanes) {
    const long n = smaller(count - i, kLanes);
    const Vec v = n == kLanes ? load(y + i) : load_first(y + i, n);
    soft |= (v != Vec{}) & (v != broadcast(1.0f));
  }
  int any = 0;
  for (long i = 0; i < kLanes; ++i) any |= soft[i];
  return any != 0;
}

template <Power kPower>
inline void run_parts(const FocalProblem& p, const float* x, const float* y, float* loss, float* gradient, double* sums,
                      int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long part = 0; part < focal_parts(p.count); ++part) {
    const long end = smaller(p.count, (part + 1) * kFocalPart);
    double sum = 0.0;
    for (long i = part * kFocalPart; i < end; i += kRun * kLanes) {
      const long count = smaller(end - i, kRun * kLanes);
      float* losses = loss ? loss + i : nullptr;
      sum += any_soft(y + i, count) ? run<kPower, true>(p, x + i, y + i, count, losses, gradient + i)
                                    : run<kPower, false>(p, x + i, y + i, count, losses, gradient + i);
    }
    sums[part] = sum;
  }
}

}  // namespace

void focal_loss(const FocalProblem& p, const float* x, const float* y, float* loss, float* gradient, double* sums,
                int threads) {
  if (p.gamma == 0.0f) return run_parts<Power::kZero>(p, x, y, loss, gradient, sums, threads);
  if (p.gamma == 1.0f) return run_parts<Power::kOne>(p, x, y, loss, gradient, sums, threads);
  if (p.gamma == 2.0f) return run_parts<Power::kTwo>(p, x, y, loss, gradient, sums, threads);
  run_parts<Power::kAny>(p, x, y, loss, gradient, sums, threads);
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
