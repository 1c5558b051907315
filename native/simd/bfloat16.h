// bfloat16 is the upper half of a float32. The product of two is exact in float32, and sums are
// float32. The same source serves both cases: with AVX512_BF16, one instruction multiplies and adds
// pairs; otherwise two multiply-adds do so in the same order.
#pragma once
#include "conv/problem.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {

typedef unsigned short VecBits
    __attribute__((vector_size(BESTOF_VECTOR_BYTES / 2), aligned(2), may_alias));

// Pairs, at the address of an element.
typedef int VecOfPairs __attribute__((vector_size(BESTOF_VECTOR_BYTES), aligned(2), may_alias));

// Two neighbours as one integer, the first in the lower half. The address is even.
typedef int Pair __attribute__((aligned(2), may_alias));

BESTOF_INLINE Pair load_pair(const Bfloat16* p) {
  return *reinterpret_cast<const Pair*>(p);
}

// The last value of an odd number, paired with a zero.
BESTOF_INLINE Pair load_last(const Bfloat16* p) {
  return p->bits;
}

BESTOF_INLINE VecInt load_pairs(const Bfloat16* p) {
  return *reinterpret_cast<const VecOfPairs*>(p);
}

// GCC widens vectors of AVX-512 by quarters: five instructions for one.
BESTOF_INLINE VecInt widened_bits(VecBits bits) {
#if defined(__AVX512F__)
  return reinterpret_cast<VecInt>(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(bits)));
#else
  return __builtin_convertvector(bits, VecInt);
#endif
}

// The bits of kLanes values, each in the lower half of a lane.
BESTOF_INLINE VecInt load_bits(const Bfloat16* p) {
  return widened_bits(*reinterpret_cast<const VecBits*>(p));
}

BESTOF_INLINE Vec load(const Bfloat16* p) {
  return reinterpret_cast<Vec>(load_bits(p) << 16);
}

// Rounds to the nearest value, and a tie to the even one. NaN stays NaN.
BESTOF_INLINE VecBits round_to_bfloat16(Vec v) {
#if defined(__AVX512BF16__)
  return reinterpret_cast<VecBits>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(v)));
#else
  const VecInt bits = reinterpret_cast<VecInt>(v), upper = (bits >> 16) & 0xFFFF;
  const VecInt rounded = ((bits + 0x7FFF + (upper & 1)) >> 16) & 0xFFFF;
  return __builtin_convertvector(v == v ? rounded : upper | 0x40, VecBits);
#endif
}

BESTOF_INLINE void store(Bfloat16* p, Vec v) {
  *reinterpret_cast<VecBits*>(p) = round_to_bfloat16(v);
}

#if defined(__AVX512BF16__)
// Rounds two vectors by one instruction, and stores both, or the wanted elements of both. Subnormal
// numbers become zero.
BESTOF_INLINE __m512i round_two(Vec first, Vec second) {
  return reinterpret_cast<__m512i>(
      _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(second), reinterpret_cast<__m512>(first)));
}
BESTOF_INLINE void store_two(Bfloat16* to, Vec first, Vec second) {
  _mm512_storeu_si512(to, round_two(first, second));
}
BESTOF_INLINE void store_two(Bfloat16* to, Vec first, Vec second, __mmask32 wanted) {
  _mm512_mask_storeu_epi16(to, wanted, round_two(first, second));
}
#endif

// Like the functions for float of these names: the first n lanes, 0 <= n <= kLanes.
BESTOF_INLINE VecInt load_first_bits(const Bfloat16* p, long n) {
#if defined(__AVX512F__)
  const auto lanes = static_cast<__mmask16>((1u << n) - 1);
  const VecBits bits = reinterpret_cast<VecBits>(_mm256_maskz_loadu_epi16(lanes, p));
#else
  VecBits bits = VecBits{};
  for (long i = 0; i < n; ++i) bits[i] = p[i].bits;
#endif
  return widened_bits(bits);
}

BESTOF_INLINE Vec load_first(const Bfloat16* p, long n) {
  return reinterpret_cast<Vec>(load_first_bits(p, n) << 16);
}

BESTOF_INLINE void store_first(Bfloat16* p, Vec v, long n) {
  const VecBits bits = round_to_bfloat16(v);
#if defined(__AVX512F__)
  const auto lanes = static_cast<__mmask16>((1u << n) - 1);
  _mm256_mask_storeu_epi16(p, lanes, reinterpret_cast<__m256i>(bits));
#else
  for (long i = 0; i < n; ++i) p[i].bits = bits[i];
#endif
}

// Not inlined, like the other functions for tails.
__attribute__((noinline)) inline void round_first(const float* from, Bfloat16* to, long n) {
  store_first(to, load_first(from, n), n);
}

BESTOF_INLINE void round_all(const float* from, Bfloat16* to, long count) {
  long i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  if (i < count) round_first(from + i, to + i, count - i);
}

// One value of memory, float32 or bfloat16.
BESTOF_INLINE float value_of(float x) {
  return x;
}
BESTOF_INLINE float value_of(Bfloat16 x) {
  const unsigned bits = static_cast<unsigned>(x.bits) << 16;
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}
BESTOF_INLINE void put(float* p, float x) {
  *p = x;
}
BESTOF_INLINE void put(Bfloat16* p, float x) {
  round_first(&x, p, 1);
}

// Converts values of memory, float32 or bfloat16, to bfloat16.
BESTOF_INLINE void round_or_copy(const float* from, Bfloat16* to, long count) {
  round_all(from, to, count);
}
BESTOF_INLINE void round_or_copy(const Bfloat16* from, Bfloat16* to, long count) {
  __builtin_memcpy(to, from, count * sizeof(Bfloat16));
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
