// The rows of an inverted residual whose 1x1 convolutions multiply pairs of bfloat16.
//
// Tile registers read weights in another layout, and multiply sixteen pixels at a time: where there
// are some, layers run one after the other.
#include "conv/inverted_residual.h"
#include "conv/residual_rows.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

long scratch_floats(const InvertedResidual& p, int threads) {
  return p.depthwise.element == Element::kFloat32 ? residual_floats<Bfloat16, float>(p, threads)
                                                  : residual_floats<Bfloat16, Bfloat16>(p, threads);
}

void run(const InvertedResidual& p, const InvertedResidualCall& call) {
  if (p.depthwise.element == Element::kFloat32) return run_residual_rows<Bfloat16, float>(p, call);
  run_residual_rows<Bfloat16, Bfloat16>(p, call);
}

}  // namespace

const InvertedResidualPass inverted_residual_bf16 = {run, scratch_floats};

}  // namespace BESTOF_TARGET
}  // namespace bestof
