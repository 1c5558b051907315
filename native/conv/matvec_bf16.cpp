// Linear layers of few rows on weights rounded to bfloat16, which are half as many bytes to read.
// Weights are widened to float32 before the products, so x and the sums stay float32. Pairs of
// bfloat16 would be faster by less than 7 % up to 4 rows, and would round x too.
#include "conv/algorithms.h"
#include "conv/matvec.h"
#include "conv/weights.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

long halved_floats(const Problem& p) {
  return divide_up(p.out_channels * p.in_channels, 2);
}

void pack(const Problem& p, const void* weights, float* packed, int threads) {
  const float* w = floats(weights);
  Bfloat16* to = halves(packed);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long k = 0; k < p.out_channels; ++k) {
    round_all(w + k * p.in_channels, to + k * p.in_channels, p.in_channels);
  }
}

void run_forward(const Problem& p, const Call& call) {
  run_few_rows(p, halves(call.second), call);
}

}  // namespace

const Passes passes::matvec_bf16 = {
    .forward = {run_forward, no_scratch, lowered_flops, halved_floats, pack},
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
