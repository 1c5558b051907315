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

BESTOF_INLINE __mmask32 first_elements(long n) {  // up to 32
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

// The elements of a short run that lie inside the image, and all of it.
constexpr long kShortRun = 32;
struct ShortRun {
  __mmask32 inside, all;
};

// Copies what lies inside the image, zeros for the others. Reads nothing else.
BESTOF_INLINE void copy_run(const Bfloat16* from, Bfloat16* to, const ShortRun& run) {
  _mm512_mask_storeu_epi16(to, run.all, _mm512_maskz_loadu_epi16(run.inside, from));
}

BESTOF_INLINE void copy_run(const float* from, Bfloat16* to, const ShortRun& run) {
  const __m512 first = _mm512_maskz_loadu_ps(static_cast<__mmask16>(run.inside), from);
  const __m512 second =
      _mm512_maskz_loadu_ps(static_cast<__mmask16>(run.inside >> 16), from + kLanes);
  _mm512_mask_storeu_epi16(to, run.all,
                           reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
}

BESTOF_INLINE void clear_run(Bfloat16* to, const ShortRun& run) {
  _mm512_mask_storeu_epi16(to, run.all, _mm512_setzero_si512());
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
