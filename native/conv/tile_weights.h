// Weights for the tile registers of AMX: `[group][panel][step][pair][kPanel]`. A step of depth is
// 32 elements. Depth is either all taps and channels in line, or each tap is padded to whole steps:
// only this allows to read the taps from a spread image. Then all taps of 32 channels follow each
// other, because they read the same pixels.
#pragma once
#include "conv/operands.h"
#include "gemm/amx_block.h"
#include "gemm/pair_panels.h"
#include "gemm/tile_depth.h"

namespace bestof {
namespace BESTOF_TARGET {

// Taps are padded if this adds less than a quarter to the products. Copying the rows of a gathered
// block takes longer: 3x3 has 9 copies of each pixel.
BESTOF_INLINE bool pads_taps(long taps, long inputs) {
  return 4 * taps * divide_up(inputs, kTileDepth) <= 5 * divide_up(taps * inputs, kTileDepth);
}

BESTOF_INLINE TileDepth tile_depth(const Problem& p) {
  const long taps = p.kernel_height * p.kernel_width, inputs = p.in_channels / p.groups;
  if (pads_taps(taps, inputs)) return {taps, inputs, divide_up(inputs, kTileDepth)};
  return {1, taps * inputs, divide_up(taps * inputs, kTileDepth)};
}

// Elements of a panel of weights.
BESTOF_INLINE long panel_elements(const TileDepth& depth) {
  return depth.all_steps() * kTileDepth * kPanel;
}

inline long tile_weight_floats(const Problem& p) {
  const long panels = divide_up(p.out_channels / p.groups, kPanel);
  return p.groups * panels * panel_elements(tile_depth(p)) / 2;
}

// Packs up to one step of up to kPanel outputs, whose weights lie `stride` apart.
inline void pack_step(const Bfloat16* from, long stride, long count, long outputs, Pair* to) {
  pack_pair_columns(ViewOf<Bfloat16>{from, stride, 1}, count, outputs, to);
}

inline void pack_step(const float* from, long stride, long count, long outputs, Pair* to) {
  for (long o = 0; o < kPanel; ++o) {
    Bfloat16 row[kTileDepth] = {};
    if (o < outputs) round_or_copy(from + o * stride, row, count);
    for (long i = 0; i < count; i += 2) to[i / 2 * kPanel + o] = load_pair(row + i);
  }
}

template <class From>
void pack_tiles(const Problem& p, const From* w, Bfloat16* packed, int threads) {
  const TileDepth depth = tile_depth(p);
  const long outputs = p.out_channels / p.groups, panels = divide_up(outputs, kPanel);
  const long row = depth.parts * depth.size, step_pairs = kTileDepth / 2 * kPanel;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long item = 0; item < p.groups * panels * depth.steps; ++item) {
    const long first = item % depth.steps * kTileDepth, panel = item / depth.steps % panels;
    const long output = item / depth.steps / panels * outputs + panel * kPanel;
    const long count = smaller(depth.size - first, kTileDepth);
    const long filled = divide_up(count, 2) * kPanel;
    Pair* to = reinterpret_cast<Pair*>(packed) + item * depth.parts * step_pairs;
    for (long part = 0; part < depth.parts; ++part, to += step_pairs) {
      pack_step(w + output * row + part * depth.size + first, row, count,
                smaller(outputs - panel * kPanel, kPanel), to);
      __builtin_memset(to + filled, 0, (step_pairs - filled) * sizeof(Pair));
    }
  }
}

// The results of a panel of a group, from the first pixel on.
template <class Out>
BESTOF_INLINE Target<Out> panel_target(const Problem& p, Out* y, const Epilogue& epilogue,
                                       long channel) {
  Target<Out> target = {y + channel,
                        p.out_channels,
                        false,
                        nullptr,
                        epilogue.bias ? epilogue.bias + channel : nullptr,
                        false,
                        nullptr,
                        epilogue.activation,
                        epilogue.slope};
  if (epilogue.residual) target.added = static_cast<const Out*>(epilogue.residual) + channel;
  return target;
}

// How the rows of a convolution are shared: blocks of rows, and parts of the panels of a block.
struct TileShares {
  long rows, blocks, parts;
};

// Cuts `total` rows into blocks of up to `fitting`. Threads share the rows, or if there are more
// outputs than results to each (`pixels`), the weights. So each thread reads the least.
inline TileShares share_rows(long total, long fitting, long pixels, long outputs, int threads) {
  TileShares s = {0, divide_up(total, larger(fitting, 1)), 1};
  if (pixels > outputs) s.blocks = smaller(round_up(s.blocks, threads), total);
  s.rows = divide_up(total, s.blocks);
  s.parts = smaller(divide_up(outputs, kPanel), divide_up(static_cast<long>(threads), s.blocks));
  return s;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
