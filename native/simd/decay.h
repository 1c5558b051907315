// e^x, in two parts, for x that needs no clamp.
#pragma once
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {

// e^x = fraction * 2^n.
struct Decay {
  Vec fraction;     // in [0.7, 1.42]
  VecInt exponent;  // n, at the place of a float's exponent
};

// The relative error is below 3e-7: Cody-Waite reduction and a minimax polynomial within 1e-7. Both
// parts are without meaning if e^x is not a normal number.
BESTOF_INLINE Decay decay_parts(Vec x) {
  const Vec magic =
      broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const Vec shifted = x * 1.44269504088896341f + magic;
  const Vec n = shifted - magic;
  const Vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec p = broadcast(0.00829031312f);
  p = p * r + 0.04189793782f;
  p = p * r + 0.1666763627f;
  p = p * r + 0.4999914947f;
  p = p * r + 0.9999997072f;
  p = p * r + 1.0f;
  return {p, reinterpret_cast<VecInt>(shifted) << 23};
}

// Returns exp(x) for x <= 0, or 0 if the result is not a normal number. The relative error is below
// 3e-7. NaN stays NaN, because the power of two is multiplied: added to the exponent, it could give
// a number.
BESTOF_INLINE Vec weight_of(Vec x) {
  const Decay e = decay_parts(x);
  const Vec power = reinterpret_cast<Vec>(e.exponent + (127 << 23));
  return x < broadcast(-87.0f) ? Vec{} : e.fraction * power;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
