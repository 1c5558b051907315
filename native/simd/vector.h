// The vector of the target instruction set, in GCC's vector extensions. The same source gives SSE2,
// NEON, AVX2 and AVX-512. All functions are inline and in the namespace of the target. So the
// linker cannot use the code of one target in the object of another.
#pragma once
#include <cstddef>

#if defined(__AVX512F__)
#include <immintrin.h>
#define BESTOF_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define BESTOF_VECTOR_BYTES 32
#else
#define BESTOF_VECTOR_BYTES 16
#endif

#ifndef BESTOF_TARGET
#error "compile with -DBESTOF_TARGET=<name of the instruction set>"
#endif

#ifndef BESTOF_REST
#define BESTOF_REST BESTOF_TARGET
#endif

#define BESTOF_INLINE inline __attribute__((always_inline))

namespace bestof {
namespace BESTOF_TARGET {

typedef float Vec __attribute__((vector_size(BESTOF_VECTOR_BYTES), aligned(4), may_alias));
typedef int VecInt __attribute__((vector_size(BESTOF_VECTOR_BYTES), aligned(4), may_alias));

constexpr long kLanes = BESTOF_VECTOR_BYTES / 4;

BESTOF_INLINE Vec load(const float* p) {
  return *reinterpret_cast<const Vec*>(p);
}
BESTOF_INLINE void store(float* p, Vec v) {
  *reinterpret_cast<Vec*>(p) = v;
}
BESTOF_INLINE Vec broadcast(float x) {
  return x - Vec{};
}

// Loads the first n lanes, 0 <= n <= kLanes; the others are zero. Reads nothing beyond p + n.
BESTOF_INLINE Vec load_first(const float* p, long n) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p));
#else
  Vec v = Vec{};
  for (long i = 0; i < n; ++i) v[i] = p[i];
  return v;
#endif
}

BESTOF_INLINE void store_first(float* p, Vec v, long n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), reinterpret_cast<__m512>(v));
#else
  for (long i = 0; i < n; ++i) p[i] = v[i];
#endif
}

// Both keep a NaN in v.
BESTOF_INLINE Vec at_least(Vec v, Vec low) {
  return v < low ? low : v;
}
BESTOF_INLINE Vec at_most(Vec v, Vec high) {
  return v > high ? high : v;
}

// Returns NaN if a or b is NaN.
BESTOF_INLINE Vec largest(Vec a, Vec b) {
  return (a > b) | (a != a) ? a : b;
}

BESTOF_INLINE long smaller(long a, long b) {
  return a < b ? a : b;
}
BESTOF_INLINE long larger(long a, long b) {
  return a < b ? b : a;
}
BESTOF_INLINE long divide_up(long a, long b) {
  return (a + b - 1) / b;
}
BESTOF_INLINE long round_up(long a, long b) {
  return divide_up(a, b) * b;
}
// Returns where part `index` begins if `total` is cut into `parts` nearly equal parts.
BESTOF_INLINE long part_begin(long total, long parts, long index) {
  return total * index / parts;
}

// Returns e^x by Cody-Waite reduction and a polynomial of degree 5. x is clamped to [-87, 87];
// inside, the relative error is below 2e-7. e^0 is 1. The polynomial has the least error of all
// that are 1 at 0, 9.2e-8; that of Taylor's series needs degree 6 for 1.2e-7.
BESTOF_INLINE Vec exponential(Vec x) {
  x = at_most(at_least(x, broadcast(-87.0f)), broadcast(87.0f));
  const Vec magic =
      broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const Vec shifted = x * 1.44269504088896341f + magic;
  const Vec n = shifted - magic;
  const Vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec p = broadcast(0.0082902303f);
  p = p * r + 0.0418983921f;
  p = p * r + 0.166676402f;
  p = p * r + 0.499991447f;
  p = p * r + 0.999999702f;
  p = p * r + 1.0f;
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(
      _mm512_scalef_ps(reinterpret_cast<__m512>(p), reinterpret_cast<__m512>(n)));
#else
  const VecInt exponent = (reinterpret_cast<VecInt>(shifted) << 23) + (127 << 23);
  return p * reinterpret_cast<Vec>(exponent);
#endif
}

// Beyond it, e^v is infinite in float32.
constexpr float kOverflow = 88.7228391f;

// Returns 1 / v for 1 <= v < 2^126, within two units in the last place. With AVX-512, an estimate
// of 14 bits and a step of Newton's method take the place of a division.
BESTOF_INLINE Vec reciprocal(Vec v) {
#if defined(__AVX512F__)
  const Vec estimate = reinterpret_cast<Vec>(_mm512_rcp14_ps(reinterpret_cast<__m512>(v)));
  return estimate * (2.0f - v * estimate);
#else
  return 1.0f / v;
#endif
}

// Returns 1 / (1 + e^-v), which is 0 where e^-v overflows: v times it is -0 for large negative v,
// and NaN for -infinity, as PyTorch's SiLU.
BESTOF_INLINE Vec logistic(Vec v) {
  return v < broadcast(-kOverflow) ? Vec{} : reciprocal(1.0f + exponential(-v));
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
