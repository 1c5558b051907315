// What happens to a result on its way from registers to memory.
#pragma once
#include "conv/problem.h"
#include "simd/stream.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {

BESTOF_INLINE Vec activate(Vec v, Activation activation, float slope) {
  switch (activation) {
    case Activation::kNone:
      return v;
    case Activation::kRelu:
      return at_least(v, Vec{});
    case Activation::kRelu6:
      return at_most(at_least(v, Vec{}), broadcast(6.0f));
    case Activation::kLeakyRelu:
      return v < Vec{} ? v * slope : v;
    case Activation::kSilu:
      return v / (1.0f + exponential(-v));
    case Activation::kHardSwish:
      return v * at_most(at_least(v + 3.0f, Vec{}), broadcast(6.0f)) * (1.0f / 6.0f);
  }
  return v;
}

// Finishes and writes n (1..kLanes) results that belong at `out`, which is channel `channel` of its pixel; `result` is
// where the whole output begins, by which the residual is found. `streamed` needs a streamable `out`, and n = kLanes.
BESTOF_INLINE void finish(Vec v, float* out, long n, long channel, const Epilogue& epilogue, const float* result,
                          bool streamed = false) {
  if (n == kLanes) {
    if (epilogue.bias) v += load(epilogue.bias + channel);
    if (epilogue.residual) v += load(epilogue.residual + (out - result));
    if (epilogue.activation != Activation::kNone) v = activate(v, epilogue.activation, epilogue.slope);
    if (streamed) {
      stream(out, v);
    } else {
      store(out, v);
    }
  } else {
    if (epilogue.bias) v += load_first(epilogue.bias + channel, n);
    if (epilogue.residual) v += load_first(epilogue.residual + (out - result), n);
    if (epilogue.activation != Activation::kNone) v = activate(v, epilogue.activation, epilogue.slope);
    store_first(out, v, n);
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
