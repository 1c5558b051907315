// What one instruction set exports: its tables, and nothing else.
#pragma once
#include "conv/algorithm.h"
#include "gemm/peak.h"
#include "pool/pool.h"
#include "transpose/blocked.h"

namespace bestof {

struct Kernels {
  const char* isa;
  long lanes;
  const Algorithm* const* algorithms;
  int algorithm_count;
  void (*transpose_blocked)(const float* x, const JoinedAxes& axes, float* y, int threads);
  PoolForward* pool_forward;
  PoolBackward* pool_backward;
  MultiplyAdds* multiply_adds;
};

namespace baseline {
extern const Kernels kKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
#endif

}  // namespace bestof
