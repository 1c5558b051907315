// Focal loss (Lin et al., 2017) on logits, stable for every finite one. It is computed from e =
// exp(-|x|) <= 1. If targets are 0 or 1, close numbers are never subtracted.
#include "loss/focal.h"

#include <omp.h>

#include "simd/decay.h"
#include "simd/kernels.h"
#include "simd/stream.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// Beyond this, exp(-x) is below the smallest normal float.
constexpr float kFarthest = 87.0f;

// The number of vectors between two checks whether all targets are 0 or 1.
constexpr long kRun = 32;

constexpr int kSign = static_cast<int>(0x80000000u);

BESTOF_INLINE Vec magnitude(Vec x) {
  return reinterpret_cast<Vec>(reinterpret_cast<VecInt>(x) & ~kSign);
}

// Returns exp(-x) for x >= 0, or 0 if the result is not a normal number, and NaN for NaN. The
// relative error is below 3e-7. For large x every step may overflow, because its result is not
// used. `exponential` has six more instructions, to clamp on both sides and for one more degree.
BESTOF_INLINE Vec decay(Vec x) {
  const Decay e = decay_parts(-x);
  // The result is normal, so n can be added to the exponent.
  const Vec result = reinterpret_cast<Vec>(reinterpret_cast<VecInt>(e.fraction) + e.exponent);
  // Added to the exponent of a NaN, n could give a number.
  const Vec kept = x != x ? x : result;
  return x > broadcast(kFarthest) ? Vec{} : kept;
}

// Returns log(1 + e) for e in [0, 1], by a minimax polynomial for log(1 + e) / e. The relative
// error is below 2e-7.
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

// The factors of a problem: for losses of class 1 and of class 0, and the exponent.
struct Weights {
  float one, zero, gamma;
};

// Targets of 0 or 1. With z the logit seen from the other class, q = sigmoid(z) and p =
// sigmoid(-z): ce = -log p, L = q^gamma ce, dL/dz = q^gamma (gamma p ce + q).
template <Power kPower>
BESTOF_INLINE Results hard(Vec x, Vec y, const Weights& weights) {
  // One comparison each serves y and z. AVX-512 then flips a sign by one masked instruction.
  const auto one = y > Vec{};
  const Vec z = one ? -x : x, far = magnitude(x);
  const auto wrong = z > Vec{};
  const Vec e = decay(far), r = 1.0f / (1.0f + e), rest = e * r;
  const Vec p = wrong ? rest : r, q = wrong ? r : rest;
  const Vec tail = log1p(e);
  const Vec ce = (wrong ? z : Vec{}) + tail;
  // For large |x|, p or ce is 0, and the other one may be infinite.
  const Vec product = far > broadcast(kFarthest) ? Vec{} : p * ce;
  Vec power = one ? broadcast(weights.one) : broadcast(weights.zero);
  if constexpr (kPower == Power::kOne) power *= q;
  if constexpr (kPower == Power::kTwo) power *= q * q;
  if constexpr (kPower == Power::kAny)
    power *= decay(weights.gamma * (at_least(-z, Vec{}) + tail));  // -log q = max(-z, 0) + tail
  const Vec slope = power * (weights.gamma * product + q);
  return {power * ce, one ? -slope : slope};
}

BESTOF_INLINE Vec raise(Vec base, float exponent) {
  Vec result = base;
  for (long i = 0; i < kLanes; ++i) result[i] = __builtin_powf(base[i], exponent);
  return result;
}

// Other targets: om = p (1 - y) + q y, ce = (1 - y) softplus(x) + y softplus(-x), and L = om^gamma
// ce.
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
BESTOF_INLINE Results focal(const FocalProblem& p, const Weights& weights, Vec x, Vec y) {
  Results results = hard<kPower>(x, y, weights);
  if constexpr (kSoft) {
    const Results between = soft<kPower>(x, y, p.gamma);
    const VecInt sure = (y == Vec{}) | (y == broadcast(1.0f));
    Vec weight = broadcast(p.scale);
    if (p.alpha >= 0.0f) weight *= p.alpha * y + (1.0f - p.alpha) * (1.0f - y);
    results.loss = sure ? results.loss : between.loss * weight;
    results.gradient = sure ? results.gradient : between.gradient * weight;
  }
  return results;
}

BESTOF_INLINE double total(Vec v) {
  // Four chains of sums, because a single chain would wait for each addition.
  double sums[4] = {};
  for (long i = 0; i < kLanes; ++i) sums[i % 4] += v[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Fetches what the loop reads 4 KiB later. The processor's own prefetcher stops at every page, and
// arithmetic then waits for memory: 1.1 to 1.25 times as fast on operands beyond the caches.
BESTOF_INLINE void prefetch(const float* p) {
  __builtin_prefetch(reinterpret_cast<const char*>(p) + 4096);
}

// Computes `count` elements, at most kRun vectors, and returns the sum of their losses. With
// kStream, gradients bypass the caches.
template <Power kPower, bool kSoft, bool kStream>
inline double run(const FocalProblem& p, const float* x, const float* y, long count, float* loss,
                  float* gradient) {
  const bool classes = p.alpha >= 0.0f;
  const Weights weights = {classes ? p.scale * p.alpha : p.scale,
                           classes ? p.scale * (1.0f - p.alpha) : p.scale, p.gamma};
  Vec sum = Vec{};
  long i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Results results = focal<kPower, kSoft>(p, weights, load(x + i), load(y + i));
    prefetch(x + i);
    prefetch(y + i);
    sum += results.loss;
    if (loss) store(loss + i, results.loss);
    if constexpr (kStream) {
      stream(gradient + i, results.gradient);
    } else {
      store(gradient + i, results.gradient);
    }
  }
  if (i < count) {
    const long n = count - i;
    const Results results =
        focal<kPower, kSoft>(p, weights, load_first(x + i, n), load_first(y + i, n));
    for (long j = 0; j < n; ++j) sum[j] += results.loss[j];
    if (loss) store_first(loss + i, results.loss, n);
    store_first(gradient + i, results.gradient, n);
  }
  return total(sum);
}

BESTOF_INLINE bool any_soft(const float* y, long count) {
  VecInt soft = VecInt{};
  for (long i = 0; i < count; i += kLanes) {
    const long n = smaller(count - i, kLanes);
    const Vec v = n == kLanes ? load(y + i) : load_first(y + i, n);
    soft |= reinterpret_cast<VecInt>(v * v - v);  // no bit is set for 0 and 1
  }
  int any = 0;
  for (long i = 0; i < kLanes; ++i) any |= soft[i];
  return any != 0;
}

template <Power kPower>
inline void run_parts(const FocalProblem& p, const float* x, const float* y, float* loss,
                      float* gradient, double* sums, int threads) {
  const bool streamed = beyond_caches(3 * p.count) && streamable(gradient);
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static) nowait
    for (long part = 0; part < focal_parts(p.count); ++part) {
      const long end = smaller(p.count, (part + 1) * kFocalPart);
      double sum = 0.0;
      for (long i = part * kFocalPart; i < end; i += kRun * kLanes) {
        const long count = smaller(end - i, kRun * kLanes);
        float* losses = loss ? loss + i : nullptr;
        if (any_soft(y + i, count)) {
          sum += run<kPower, true, false>(p, x + i, y + i, count, losses, gradient + i);
        } else if (streamed) {
          sum += run<kPower, false, true>(p, x + i, y + i, count, losses, gradient + i);
        } else {
          sum += run<kPower, false, false>(p, x + i, y + i, count, losses, gradient + i);
        }
      }
      sums[part] = sum;
    }
    end_stream();
  }
}

}  // namespace

void focal_loss(const FocalProblem& p, const float* x, const float* y, float* loss, float* gradient,
                double* sums, int threads) {
  if (p.gamma == 0.0f) return run_parts<Power::kZero>(p, x, y, loss, gradient, sums, threads);
  if (p.gamma == 1.0f) return run_parts<Power::kOne>(p, x, y, loss, gradient, sums, threads);
  if (p.gamma == 2.0f) return run_parts<Power::kTwo>(p, x, y, loss, gradient, sums, threads);
  run_parts<Power::kAny>(p, x, y, loss, gradient, sums, threads);
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
