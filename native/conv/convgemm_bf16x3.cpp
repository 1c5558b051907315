// Implicit GEMM of float32 by tile registers of bfloat16, at the accuracy of float32: each operand
// is the sum of three numbers of bfloat16. Instruction sets without tile registers multiply
// float32.
#include "conv/algorithms.h"
#include "conv/spread_axis.h"
#include "conv/weights.h"
#if defined(__AMX_BF16__)
#include "conv/spread_parts.h"
#endif

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// The channels of a tap are padded to 32. Beyond half as many more, float32 is as fast.
bool supports(const Problem& p) {
  const long inputs = p.in_channels / p.groups;
  return 2 * round_up(inputs, 32) <= 3 * inputs && spread_is_small(p, 3);
}

#if defined(__AMX_BF16__)

bool is_empty(const Problem& p) {
  return p.batch * p.out_height * p.out_width == 0;
}

long scratch_floats(const Problem& p, int threads) {
  return is_empty(p) ? 0 : spread_parts_floats(p, threads);
}

void run(const Problem& p, const Call& call) {
  if (!is_empty(p)) run_spread_parts(p, call);
}

long packed_floats(const Problem& p) {
  return WeightParts(p).floats();
}

void pack(const Problem& p, const void* w, float* packed, int threads) {
  pack_weight_parts(p, floats(w), packed, threads);
}

#else

constexpr const Pass& other() {
  return BESTOF_REST::passes::convgemm.forward;
}

long scratch_floats(const Problem& p, int threads) {
  return other().scratch_floats(p, threads);
}

void run(const Problem& p, const Call& call) {
  other().run(p, call);
}

long packed_floats(const Problem& p) {
  return other().packed_floats(p);
}

void pack(const Problem& p, const void* w, float* packed, int threads) {
  other().pack(p, w, packed, threads);
}

#endif

}  // namespace

const Passes passes::convgemm_bf16x3 = {
    .forward = {run, scratch_floats, lowered_flops, packed_floats, pack, supports},
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
