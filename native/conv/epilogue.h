// What happens to a result on its way from registers to memory.
#pragma once
#include "conv/problem.h"
#include "simd/bfloat16.h"
#include "simd/stream.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {

// Returns P(a normal number is below v) = 0.5 + v q(v^2), where q is a polynomial fitted on |v| <=
// 5.3 for the least error. This is at most 1.5e-7, and 1.8e-7 without fused multiply-adds, with the
// rounding of float32. Beyond 5.3 the probability is 0 or 1. On a Zen 4, a vector takes 8 to 12 ns
// in an epilogue. Abramowitz and Stegun, 7.1.26, needs a division and an exponential, and took 17
// to 25 ns.
BESTOF_INLINE Vec normal_below(Vec v) {
  constexpr float kLimit = 5.3f * 5.3f;
  const Vec t = at_most(v * v, broadcast(kLimit)) * (2 / kLimit) - 1.0f;
  Vec p = broadcast(2.84598093e-04f);
  p = p * t - 7.65330798e-04f;
  p = p * t + 7.29191699e-04f;
  p = p * t - 0.0010937618f;
  p = p * t + 0.0031382584f;
  p = p * t - 0.005851927f;
  p = p * t + 0.008826305f;
  p = p * t - 0.0131842485f;
  p = p * t + 0.01892636f;
  p = p * t - 0.025298603f;
  p = p * t + 0.032079455f;
  p = p * t - 0.0395889f;
  p = p * t + 0.049264167f;
  p = p * t - 0.06651851f;
  p = p * t + 0.13339256f;
  return at_most(at_least(v * p + 0.5f, Vec{}), broadcast(1.0f));
}

BESTOF_INLINE Vec gelu(Vec v) {
  return v * normal_below(v);
}

// Returns 0.5 v (1 + tanh(sqrt(2 / pi) (v + 0.044715 v^3))), as v times a logistic function.
BESTOF_INLINE Vec gelu_tanh(Vec v) {
  constexpr float kTwice = 2 * 0.79788456080286536f;
  return v * logistic(kTwice * (v + 0.044715f * (v * v) * v));
}

// Every activation, by one switch. Inlined where the compiler knows the activation.
BESTOF_INLINE Vec activate_inline(Vec v, Activation activation, float slope) {
  switch (activation) {
#define BESTOF_ACTIVATION(enumerator, name, falls, result) \
  case Activation::enumerator:                             \
    return result;
#include "conv/activations.inc"
#undef BESTOF_ACTIVATION
  }
  return v;
}

// Out of line, as are the tails of rows: inlined into every size of every micro-kernel these were
// two thirds of the code and of the time that it took to compile.
__attribute__((noinline)) inline Vec activate_seldom(Vec v, Activation activation, float slope) {
  return activate_inline(v, activation, slope);
}

BESTOF_INLINE Vec activate(Vec v, Activation activation, float slope) {
  if (activation == Activation::kNone) return v;
  return activation == Activation::kRelu ? at_least(v, Vec{})
                                         : activate_seldom(v, activation, slope);
}

// As `finish`, for fewer than kLanes results.
template <class Out>
__attribute__((noinline)) inline void finish_first(Vec v, Out* out, long n, long channel,
                                                   const Epilogue& epilogue, const Out* result) {
  if (epilogue.bias) v += load_first(epilogue.bias + channel, n);
  if (epilogue.residual)
    v += load_first(static_cast<const Out*>(epilogue.residual) + (out - result), n);
  store_first(out, activate(v, epilogue.activation, epilogue.slope), n);
}

// Finishes n (1..kLanes) results and writes them to `out`, which is channel `channel` of its pixel.
// `result` is where the whole output begins; the residual is found by it. `streamed` needs a
// streamable `out`, and n = kLanes.
template <class Out>
BESTOF_INLINE void finish(Vec v, Out* out, long n, long channel, const Epilogue& epilogue,
                          const Out* result, bool streamed = false) {
  if (n == kLanes) {
    if (epilogue.bias) v += load(epilogue.bias + channel);
    if (epilogue.residual) v += load(static_cast<const Out*>(epilogue.residual) + (out - result));
    v = activate(v, epilogue.activation, epilogue.slope);
    if constexpr (sizeof(Out) == sizeof(float)) {
      if (streamed) return stream(out, v);
    }
    store(out, v);
  } else {
    finish_first(v, out, n, channel, epilogue, result);
  }
}

// The usual end of a convolution: results have at most a lower and an upper bound, so no vector
// needs a branch or a call. Prefetching the lines of the results brings 1x1 from 64 to 64 channels
// @56 to 0.90 of the time, and to 0.77 in batches of 8.
BESTOF_INLINE bool is_bounded(Activation activation) {
  return activation == Activation::kNone || activation == Activation::kRelu ||
         activation == Activation::kRelu6;
}

struct Bounds {
  Vec low, high;

  // Of an activation that is bounded.
  BESTOF_INLINE explicit Bounds(Activation activation)
      : low(broadcast(activation == Activation::kNone ? -__builtin_inff() : 0.0f)),
        high(broadcast(activation == Activation::kRelu6 ? 6.0f : __builtin_inff())) {}

  BESTOF_INLINE Vec operator()(Vec v) const { return at_most(at_least(v, low), high); }
};

BESTOF_INLINE Vec bias_at(const Epilogue& epilogue, long channel) {
  return epilogue.bias ? load(epilogue.bias + channel) : Vec{};
}

// Finishes whole vectors of the sums of `count` pixels, which lie `stride` apart.
template <Activation kActivation, class Out, class Places>
__attribute__((noinline)) inline void finish_activated(const float* sums, long stride, long count,
                                                       const Places& place, long channel,
                                                       const Epilogue& epilogue,
                                                       const Out* result) {
  const Vec bias = bias_at(epilogue, channel);
  const float slope = epilogue.slope;
  const Out* residual = static_cast<const Out*>(epilogue.residual);
  for (long i = 0; i < count; ++i) {
    Out* out = place(i);
    Vec v = load(sums + i * stride) + bias;
    if (residual) v += load(residual + (out - result));
    store(out, activate_inline(v, kActivation, slope));
  }
}

// As `finish`, for the sums of `count` pixels, `stride` apart. place(i): where those of pixel i go.
// The activation is chosen once: a call for each vector took half of the time of a depthwise
// convolution, and a third of that of a stem of 3 channels.
template <class Out, class Places>
inline void finish_pixels(const float* sums, long stride, long count, const Places& place,
                          long lanes, long channel, const Epilogue& epilogue, const Out* result) {
  if (lanes < kLanes) {
    for (long i = 0; i < count; ++i)
      finish_first(load(sums + i * stride), place(i), lanes, channel, epilogue, result);
    return;
  }
  switch (epilogue.activation) {
#define BESTOF_ACTIVATION(enumerator, name, falls, activated)                                      \
  case Activation::enumerator:                                                                     \
    return finish_activated<Activation::enumerator>(sums, stride, count, place, channel, epilogue, \
                                                    result);
#include "conv/activations.inc"
#undef BESTOF_ACTIVATION
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
