// The gradients of attention where vectors multiply pairs of bfloat16, and there are no tile
// registers. Few queries or keys, and operands of float32, go to the kernel that widens operands.
#include "attention/backward.h"
#include "attention/whole_gradients.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

namespace rest = BESTOF_REST;

// Whether products of pairs take less time than widened operands. Rows are padded to 16, and keys
// to 32. (One thread of a Zen 4, times of widened operands over those of pairs: 8 queries by 512
// keys 0.94, 33 by 33 0.87, 17 by 512 1.14, 65 by 65 1.12, 1,024 by 1,024 1.9.)
bool is_by_pairs(const AttentionBackward& p) {
  const Attention& of = p.of;
  const long padded = round_up(of.queries, kTileHeight) * round_up(of.keys, kPanel);
  return of.element == Element::kBfloat16 && padded < 2 * of.queries * of.keys;
}

void run(const AttentionBackward& p, const AttentionBackwardCall& call) {
  if (is_by_pairs(p)) return descend_whole(p, call);
  rest::attention_backward.run(p, call);
}

long scratch_floats(const AttentionBackward& p, int threads) {
  if (is_by_pairs(p)) return threads * whole_floats(p);
  return rest::attention_backward.scratch_floats(p, threads);
}

}  // namespace

const AttentionBackwardPass attention_backward = {run, scratch_floats};

}  // namespace BESTOF_TARGET
}  // namespace bestof
