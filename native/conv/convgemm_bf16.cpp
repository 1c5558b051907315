// Implicit GEMM with products of bfloat16 and sums of float32.
//
// By vectors: tensors of bfloat16 are read where they lie, unless their rows collide in L1. Tensors
// of float32 are rounded first: all of x if taps share pixels, else block by block.
//
// By the tile registers of AMX: blocks of x are copied or rounded, so that sixteen rows of a tile
// lie at one distance.
#include "conv/algorithms.h"
#if defined(__AMX_BF16__)
#include "conv/gathered_tiles.h"
#include "conv/spread_tiles.h"
#include "conv/weights.h"
#else
#include "conv/forward_grid.h"
#endif

namespace bestof {
namespace BESTOF_TARGET {
namespace {

#if defined(__AMX_BF16__)

long pair_floats(const Problem& p) {
  return tile_weight_floats(p);
}

template <class From>
void pack_pairs(const Problem& p, const From* w, Bfloat16* packed, int threads) {
  pack_tiles(p, w, packed, threads);
}

// Whether each pixel of a block is copied once, or once for each tap.
bool spreads(const Problem& p) {
  return pads_taps(p.kernel_height * p.kernel_width, p.in_channels / p.groups);
}

bool supports(const Problem& p) {
  return !spreads(p) || spread_is_small(p, 1);
}

bool is_empty(const Problem& p) {
  return p.batch * p.out_height * p.out_width == 0;
}

long forward_scratch(const Problem& p, int threads) {
  if (is_empty(p)) return 0;
  return spreads(p) ? spread_floats(p, threads) : gathered_floats(p, threads);
}

template <class Element>
void run(const Problem& p, const Element* x, Element* y, const Call& call) {
  const Bfloat16* packed = halves(call.second);
  if (is_empty(p)) return;
  if (spreads(p)) return run_spread(p, x, packed, y, call.epilogue, call.scratch, call.threads);
  run_gathered(p, x, packed, y, call.epilogue, call.scratch, call.threads);
}

#else

bool supports(const Problem&) {
  return true;
}

bool copies(const Problem& p) {
  const bool collide = rows_collide<Bfloat16>(p.stride_x * p.in_channels);
  return collide || (p.element == Element::kFloat32 && p.kernel_height * p.kernel_width == 1);
}

// A float of packed weights is a pair: `[group][panel][tap][pair][kPanel]`, tails zero.
long pair_floats(const Problem& p) {
  return packed_floats(p.groups, p.out_channels / p.groups, divide_up(p.in_channels / p.groups, 2),
                       p.kernel_height * p.kernel_width);
}

template <class From>
void pack_pairs(const Problem& p, const From* w, Bfloat16* packed, int threads) {
  constexpr long kBlock = 64;  // inputs whose pairs stay in L1 while the outputs of a panel pass
  const long inputs = p.in_channels / p.groups, outputs = p.out_channels / p.groups;
  const long taps = p.kernel_height * p.kernel_width, panels = divide_up(outputs, kPanel);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long item = 0; item < p.groups * panels * taps; ++item) {
    const long tap = item % taps, panel = item / taps % panels, group = item / (taps * panels);
    Pair* to = reinterpret_cast<Pair*>(packed) + item * divide_up(inputs, 2) * kPanel;
    for (long block = 0; block < inputs; block += kBlock) {
      const long count = smaller(inputs - block, kBlock);
      for (long o = 0; o < kPanel; ++o) {
        Bfloat16 row[kBlock] = {};
        if (const long output = panel * kPanel + o; output < outputs) {
          round_or_copy(w + ((group * outputs + output) * taps + tap) * inputs + block, row, count);
        }
        for (long i = 0; i < count; i += 2) to[(block + i) / 2 * kPanel + o] = load_pair(row + i);
      }
    }
  }
}

long forward_scratch(const Problem& p, int threads) {
  return copies(p) ? forward_grid_floats<Bfloat16, true>(p, threads)
                   : forward_grid_floats<Bfloat16, false>(p, threads);
}

template <class Element>
void run(const Problem& p, const Element* x, Element* y, const Call& call) {
  const Bfloat16* packed = halves(call.second);
  if (copies(p)) {
    run_forward_grid<Bfloat16, true>(p, x, packed, y, call.epilogue, call.scratch, call.threads);
  } else {
    run_forward_grid<Bfloat16, false>(p, x, packed, y, call.epilogue, call.scratch, call.threads);
  }
}

#endif

void pack(const Problem& p, const void* w, float* packed, int threads) {
  Bfloat16* to = halves(packed);
  if (p.element == Element::kBfloat16) {
    pack_pairs(p, halves(w), to, threads);
  } else {
    pack_pairs(p, floats(w), to, threads);
  }
}

void run_forward(const Problem& p, const Call& call) {
  if (p.element == Element::kFloat32) return run(p, floats(call.first), floats(call.result), call);
  run(p, halves(call.first), halves(call.result), call);
}

}  // namespace

const Passes passes::convgemm_bf16 = {
    .forward = {run_forward, forward_scratch, lowered_flops, pair_floats, pack, supports},
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
