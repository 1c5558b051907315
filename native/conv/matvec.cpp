// Linear layers of few rows. Weights are read as they are: nothing is packed or stored twice.
#include "conv/matvec.h"

#include "conv/algorithms.h"
#include "conv/weights.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

void run_forward(const Problem& p, const Call& call) {
  run_few_rows(p, floats(call.second), call);
}

}  // namespace

const Passes passes::matvec = {
    .forward = {run_forward, no_scratch, lowered_flops},
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
