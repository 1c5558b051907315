// As many independent chains of multiply-adds as the micro-kernel has accumulators: more than two
// units with a latency of four or five cycles need.
#include "gemm/peak.h"

#include <omp.h>

#include "gemm/micro_kernel.h"
#include "simd/kernels.h"

namespace bestof {
namespace BESTOF_TARGET {

double multiply_adds(long steps, int threads) {
  constexpr int kChains = kTileRows * kPanelVectors;
  double flops = 0.0;
#pragma omp parallel num_threads(threads) reduction(+ : flops)
  {
    Vec chain[kChains];
    Vec factor = broadcast(0.5f), addend = broadcast(1.0f);
#pragma GCC unroll 32
    for (int i = 0; i < kChains; ++i) chain[i] = broadcast(static_cast<float>(i));
    for (long step = 0; step < steps; ++step) {
#pragma GCC unroll 32
      for (int i = 0; i < kChains; ++i) chain[i] = chain[i] * factor + addend;
      asm volatile("" : : : "memory");
    }
    Vec sum = Vec{};
#pragma GCC unroll 32
    for (int i = 0; i < kChains; ++i) sum += chain[i];
    // Every chain ends near 2, so this holds; the compiler cannot know.
    if (sum[0] > 0.0f) flops += 2.0 * kChains * kLanes * static_cast<double>(steps);
  }
  return flops;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
