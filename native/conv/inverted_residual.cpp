#include "conv/inverted_residual.h"

#include "conv/residual_rows.h"

namespace bestof {
namespace BESTOF_TARGET {

namespace {

long scratch_floats(const InvertedResidual& p, int threads) {
  return p.depthwise.element == Element::kFloat32 ? residual_floats<float, float>(p, threads)
                                                  : residual_floats<float, Bfloat16>(p, threads);
}

void run(const InvertedResidual& p, const InvertedResidualCall& call) {
  if (p.depthwise.element == Element::kFloat32) return run_residual_rows<float, float>(p, call);
  run_residual_rows<float, Bfloat16>(p, call);
}

}  // namespace

const InvertedResidualPass inverted_residual = {run, scratch_floats};

}  // namespace BESTOF_TARGET
}  // namespace bestof
