#include "attention/forward.h"

#include "attention/few_queries.h"
#include "attention/many_queries.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

void run(const Attention& p, const AttentionCall& call) {
  if (p.queries <= kFewQueries) return attend_few<float>(p, call);
  attend_many<float, float>(p, call);
}

long scratch_floats(const Attention& p, int threads) {
  return p.queries <= kFewQueries ? few_floats(p, threads) : many_floats(p, threads);
}

}  // namespace

const AttentionPass attention = {run, scratch_floats};

}  // namespace BESTOF_TARGET
}  // namespace bestof
