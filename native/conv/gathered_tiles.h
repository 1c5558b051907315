// An implicit GEMM by the tile registers of AMX, where groups have few channels: the rows of a
// block are gathered (im2row), all taps and channels in line, and padded to whole steps of depth.
#pragma once
#include <omp.h>

#include "conv/copied_channels.h"
#include "conv/shares.h"
#include "conv/tile_weights.h"

namespace bestof {
namespace BESTOF_TARGET {

// Gathered rows stay in L1 while up to this many panels pass, else in L2.
constexpr long kFewPanels = 4, kFewBytes = 24 * 1024;

struct Gathering {
  long pixels, steps, stride;
  TileShares shares;
  long sums_floats, own_floats;
};

inline Gathering gathering_of(const Problem& p, int threads) {
  Gathering g;
  const long outputs = p.out_channels / p.groups;
  g.pixels = p.batch * p.out_height * p.out_width;
  g.steps = tile_depth(p).steps;
  g.stride = row_stride(g.steps * kTileDepth);
  const bool few = outputs <= kFewPanels * kPanel;
  const long fitting = (few ? kFewBytes : level2_bytes() / 4) / (2 * g.stride) / kBlockHeight;
  const long rows = larger(fitting, 1) * kBlockHeight;
  g.shares = share_rows(g.pixels, rows, g.pixels, outputs, threads);
  const long height = round_up(g.shares.rows, kBlockHeight);
  g.sums_floats = sums_floats(height);
  g.own_floats = g.sums_floats + height * g.stride / 2;
  return g;
}

// Gathers one row of taps of a result. `line` is its row of the input and the channels of its
// group, `x0` the column of the first tap.
template <class From>
BESTOF_INLINE void gather_taps(const Problem& p, const From* line, long x0, Bfloat16* to) {
  const long inputs = p.in_channels / p.groups;
  if (p.dilation_x == 1 && p.groups == 1) {
    const long begin = smaller(larger(-x0, 0), p.kernel_width);
    const long end = larger(smaller(p.in_width - x0, p.kernel_width), begin);
    clear_channels(to, begin * inputs);
    copy_channels(line + (x0 + begin) * inputs, to + begin * inputs, (end - begin) * inputs);
    clear_channels(to + end * inputs, (p.kernel_width - end) * inputs);
    return;
  }
  for (long t = 0; t < p.kernel_width; ++t, to += inputs) {
    const long column = x0 + t * p.dilation_x;
    if (0 <= column && column < p.in_width) {
      copy_channels(line + column * p.in_channels, to, inputs);
    } else {
      clear_channels(to, inputs);
    }
  }
}

// Gathers the rows of `count` results from `first` on. `x` is the first channel of a group.
template <class From>
inline void gather_block(const Problem& p, const Gathering& g, const From* x, long first,
                         long count, Bfloat16* to) {
  const long run = p.kernel_width * (p.in_channels / p.groups), depth = p.kernel_height * run;
  long column = first % p.out_width, row = first / p.out_width % p.out_height;
  long image = first / p.out_width / p.out_height;
  for (long i = 0; i < count; ++i, to += g.stride) {
    const long x0 = column * p.stride_x - p.pad_left;
    for (long r = 0; r < p.kernel_height; ++r) {
      const long y = row * p.stride_y - p.pad_top + r * p.dilation_y;
      if (0 <= y && y < p.in_height) {
        gather_taps(p, x + (image * p.in_height + y) * p.in_width * p.in_channels, x0,
                    to + r * run);
      } else {
        clear_channels(to + r * run, run);
      }
    }
    clear_channels(to + depth, g.steps * kTileDepth - depth);
    if (++column < p.out_width) continue;
    column = 0;
    if (++row < p.out_height) continue;
    row = 0;
    ++image;
  }
}

inline long gathered_floats(const Problem& p, int threads) {
  return threads * gathering_of(p, threads).own_floats;
}

template <class Element>
inline void run_gathered(const Problem& p, const Element* x, const Bfloat16* packed, Element* y,
                         const Epilogue& epilogue, float* scratch, int threads) {
  const Gathering g = gathering_of(p, threads);
  const TileDepth depth = tile_depth(p);
  const long outputs = p.out_channels / p.groups, panels = divide_up(outputs, kPanel);
  Shares shares(g.shares.blocks * g.shares.parts, threads);
#pragma omp parallel num_threads(threads)
  {
    const TileRegisters registers;
    const long thread = omp_get_thread_num();
    float* sums = scratch + thread * g.own_floats;
    Bfloat16* rows = halves(sums + g.sums_floats);
    for (long item = shares.take(thread); item >= 0; item = shares.take(thread)) {
      const long at = item / g.shares.parts, part = item % g.shares.parts;
      const long first = part_begin(g.pixels, g.shares.blocks, at);
      const long count = part_begin(g.pixels, g.shares.blocks, at + 1) - first;
      for (long group = 0; group < p.groups; ++group) {
        gather_block(p, g, x + group * (p.in_channels / p.groups), first, count, rows);
        const long last = part_begin(panels, g.shares.parts, part + 1);
        for (long panel = part_begin(panels, g.shares.parts, part); panel < last; ++panel) {
          const Target<Element> target =
              panel_target(p, y, epilogue, group * outputs + panel * kPanel);
          multiply_block(rows, g.stride, count,
                         packed + (group * panels + panel) * panel_elements(depth), depth.size,
                         smaller(outputs - panel * kPanel, kPanel), target_at(target, first, 0),
                         sums);
        }
      }
    }
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
