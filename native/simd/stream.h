// Stores that bypass the caches, for results that are too large for any cache.
#pragma once
#include "simd/isa.h"
#include "simd/vector.h"

#if defined(__SSE__)
#include <immintrin.h>
#endif

namespace bestof {
namespace BESTOF_TARGET {

// Stores a whole vector at a multiple of its size. If whole cache lines are written in this way,
// memory is not read first: a copy of 100 MB moves two thirds of the bytes.
BESTOF_INLINE void stream(float* p, Vec v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(p, reinterpret_cast<__m512>(v));
#elif defined(__AVX2__)
  _mm256_stream_ps(p, reinterpret_cast<__m256>(v));
#elif defined(__SSE__)
  _mm_stream_ps(p, reinterpret_cast<__m128>(v));
#else
  store(p, v);
#endif
}

// Makes the streamed data of this thread visible before any later write of the thread.
BESTOF_INLINE void end_stream() {
#if defined(__SSE__)
  _mm_sfence();
#endif
}

// Returns whether vectors may be streamed to p.
BESTOF_INLINE bool streamable(const float* p) {
  return reinterpret_cast<unsigned long>(p) % BESTOF_VECTOR_BYTES == 0;
}

// Returns whether to stream if all operands together have so many floats: the last cache cannot
// keep them until they are read.
BESTOF_INLINE bool beyond_caches(long floats) {
  return 4 * floats > level3_bytes();
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
