// Attention of bfloat16, with sums of float32.
#include "attention/few_queries.h"
#include "attention/forward.h"
#include "attention/many_queries.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// What products multiply. Without an instruction for pairs, float32 is faster than to emulate it.
#if defined(__AVX512BF16__)
using Factor = Bfloat16;
#else
using Factor = float;
#endif

void run(const Attention& p, const AttentionCall& call) {
  if (p.queries <= kFewQueries) return attend_few<Bfloat16>(p, call);
  attend_many<Bfloat16, Factor>(p, call);
}

long scratch_floats(const Attention& p, int threads) {
  return p.queries <= kFewQueries ? few_floats(p, threads) : many_floats(p, threads);
}

}  // namespace

const AttentionPass attention_bf16 = {run, scratch_floats};

}  // namespace BESTOF_TARGET
}  // namespace bestof
