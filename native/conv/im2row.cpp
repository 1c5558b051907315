// im2row + GEMM: the patches of a block of output pixels are copied to L2, one after the other, and
// multiplied there. From about 64 output channels on, the copy is cheap beside the GEMM. Every tile
// of it is regular.
#include "conv/algorithms.h"
#include "conv/lowered_weight.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

long forward_scratch(const Problem& p, int threads) {
  return forward_grid_floats<float, true>(p, threads);
}

void run_forward(const Problem& p, const Call& call) {
  run_forward_grid<float, true>(p, floats(call.first), floats(call.second), floats(call.result),
                                call.epilogue, call.scratch, call.threads);
}

bool supports_backward_input(const Problem& p) {
  return p.stride_y == 1 && p.stride_x == 1;
}

long backward_input_scratch(const Problem& p, int threads) {
  const Problem q = flipped_problem(p);
  return weight_floats(q) + forward_grid_floats<float, true>(q, threads);
}

void run_backward_input(const Problem& p, const Call& call) {
  const Problem q = flipped_problem(p);
  pack_weights(flipped_view(p, floats(call.second)), call.scratch, call.threads);
  run_forward_grid<float, true>(q, floats(call.first), call.scratch, floats(call.result),
                                call.epilogue, call.scratch + weight_floats(q), call.threads);
}

}  // namespace

const Passes passes::im2row = {
    .forward = {run_forward, forward_scratch, lowered_flops, weight_floats, pack_forward},
    .backward_input = {run_backward_input, backward_input_scratch, lowered_flops, nullptr, nullptr,
                       supports_backward_input},
    .backward_weight = {run_weight_copied, weight_copied_floats, lowered_flops},
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
