// Linear layers of few rows on weights rounded to bfloat16, half as many bytes to read. They become
// float32 again on their way to the products, so x and the sums stay as they are. Multiplying pairs
// of bfloat16 is faster by less than 7 % up to 4 rows, and it rounds the rows too.
#include "conv/algorithms.h"
#include "conv/matvec.h"
#include "conv/weights.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

long halved_floats(const Problem& p) {
  return divide_up(p.out_channels * p.in_channels, 2);
}

void pack(const Problem& p, const float* w, float* packed, int threads) {
  Bfloat16* to = reinterpret_cast<Bfloat16*>(packed);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long k = 0; k < p.out_channels; ++k) {
    round_all(w + k * p.in_channels, to + k * p.in_channels, p.in_channels);
  }
}

void run_forward(const Problem& p, const Call& call) {
  run_few_rows(p, reinterpret_cast<const Bfloat16*>(call.second), call);
}

}  // namespace

// Rounding a weight errs by up to 2^-8, of a sum by up to 2^-8 of the sum of the magnitudes of its
// terms; where weights are at random and results many, by 1.7e-3 of these, rms, which is what is
// promised.
const Algorithm kMatvecBf16 = {
    "matvec_bf16",
    {has_few_rows, halved_floats, pack, no_scratch, run_forward, 1e-6, lowered_flops, 2e-3},
    {},
    {},
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
