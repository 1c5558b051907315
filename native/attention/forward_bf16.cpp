// Attention of bfloat16, with sums of float32.
#include "attention/few_queries.h"
#include "attention/forward.h"
#if defined(__AMX_BF16__)
#include "attention/tiled_queries.h"
#else
#include "attention/many_queries.h"
#endif

namespace bestof {
namespace BESTOF_TARGET {
namespace {

#if defined(__AMX_BF16__)
void run_many(const Attention& p, const AttentionCall& call) {
  attend_tiled(p, call);
}
long floats_of_many(const Attention& p, int threads) {
  return tiled_floats(p, threads);
}
#else
// What products multiply. Without an instruction for pairs, float32 is faster than to emulate it.
#if defined(__AVX512BF16__)
using Factor = Bfloat16;
#else
using Factor = float;
#endif
void run_many(const Attention& p, const AttentionCall& call) {
  attend_many<Bfloat16, Factor>(p, call);
}
long floats_of_many(const Attention& p, int threads) {
  return many_floats(p, threads);
}
#endif

void run(const Attention& p, const AttentionCall& call) {
  if (p.queries <= kFewQueries) return attend_few<Bfloat16>(p, call);
  run_many(p, call);
}

long scratch_floats(const Attention& p, int threads) {
  return p.queries <= kFewQueries ? few_floats(p, threads) : floats_of_many(p, threads);
}

}  // namespace

const AttentionPass attention_bf16 = {run, scratch_floats};

}  // namespace BESTOF_TARGET
}  // namespace bestof
