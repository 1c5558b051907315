// The gradients of attention where there are tile registers: by these for bfloat16, and by the
// kernels of another instruction set for float32.
#include "attention/backward.h"
#include "attention/tiled_gradients.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

namespace rest = BESTOF_REST;

void run(const AttentionBackward& p, const AttentionBackwardCall& call) {
  if (p.of.element == Element::kBfloat16) return descend_tiled(p, call);
  rest::attention_backward.run(p, call);
}

long scratch_floats(const AttentionBackward& p, int threads) {
  if (p.of.element == Element::kBfloat16) return tiled_gradient_floats(p, threads);
  return rest::attention_backward.scratch_floats(p, threads);
}

}  // namespace

const AttentionBackwardPass attention_backward = {run, scratch_floats};

}  // namespace BESTOF_TARGET
}  // namespace bestof
