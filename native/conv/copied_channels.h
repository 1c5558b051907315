// Copies of few elements as bfloat16, inline: a call of the library takes 5 to 10 ns for each.
#pragma once
#include "simd/bfloat16.h"

namespace bestof {
namespace BESTOF_TARGET {

BESTOF_INLINE void copy_channels(const float* from, Bfloat16* to, long count) {
  long i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  if (i < count) store_first(to + i, load_first(from + i, count - i), count - i);
}

BESTOF_INLINE __mmask32 first_elements(long n) {
  return static_cast<__mmask32>((1ul << n) - 1);
}

BESTOF_INLINE void copy_channels(const Bfloat16* from, Bfloat16* to, long count) {
  long i = 0;
  for (; i + 32 <= count; i += 32) _mm512_storeu_si512(to + i, _mm512_loadu_si512(from + i));
  if (i == count) return;
  const __mmask32 left = first_elements(count - i);
  _mm512_mask_storeu_epi16(to + i, left, _mm512_maskz_loadu_epi16(left, from + i));
}

BESTOF_INLINE void clear_channels(Bfloat16* to, long count) {
  long i = 0;
  for (; i + 32 <= count; i += 32) _mm512_storeu_si512(to + i, _mm512_setzero_si512());
  if (i < count)
    _mm512_mask_storeu_epi16(to + i, first_elements(count - i), _mm512_setzero_si512());
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
