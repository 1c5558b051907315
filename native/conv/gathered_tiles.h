// An implicit GEMM by the tile registers of AMX, where groups have few channels: the rows of a
// block are gathered (im2row), all taps and channels in line, and padded to whole steps of depth.
#pragma once
#include <omp.h>

#include "conv/copied_channels.h"
#include "conv/shares.h"
#include "conv/tile_weights.h"

namespace bestof {
namespace BESTOF_TARGET {

// Gathered rows stay in L1 while up to this many panels pass, else in L2. The stem of ResNet takes
// 0.71 of the time with 12 KiB of them in place of 24: weights, sums and results are there too.
constexpr long kFewPanels = 4, kFewBytes = 12 * 1024;

// Lies between the scratch of two threads. Whoever reads the last rows also fetches lines ahead in
// their page, which the next thread writes.
constexpr long kApartFloats = 2048;

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
  g.own_floats = g.sums_floats + height * g.stride / 2 + kApartFloats;
  return g;
}

// Whether a row of taps lies in one piece.
BESTOF_INLINE bool one_run(const Problem& p) {
  return p.dilation_x == 1 && p.groups == 1;
}

// The columns of the image that a row of taps reads, the first of them at `x0`: taps [begin, end).
struct TapRange {
  long begin, end;
};

BESTOF_INLINE TapRange taps_inside(const Problem& p, long x0) {
  const long begin = smaller(larger(-x0, 0), p.kernel_width);
  return {begin, larger(smaller(p.in_width - x0, p.kernel_width), begin)};
}

// Gathers one row of taps of a result. `line` is its row of the input and the channels of its
// group, `x0` the column of the first tap.
template <class From>
BESTOF_INLINE void gather_taps(const Problem& p, const From* line, long x0, Bfloat16* to) {
  const long inputs = p.in_channels / p.groups;
  if (one_run(p)) {
    const TapRange inside = taps_inside(p, x0);
    clear_channels(to, inside.begin * inputs);
    copy_channels(line + (x0 + inside.begin) * inputs, to + inside.begin * inputs,
                  (inside.end - inside.begin) * inputs);
    clear_channels(to + inside.end * inputs, (p.kernel_width - inside.end) * inputs);
    return;
  }
  const bool brief = inputs <= kShortRun;
  const __mmask32 all = first_elements(smaller(inputs, kShortRun));
  for (long t = 0; t < p.kernel_width; ++t, to += inputs) {
    const long column = x0 + t * p.dilation_x;
    if (0 <= column && column < p.in_width) {
      const From* from = line + column * p.in_channels;
      if (brief) {
        copy_run(from, to, {all, all});
      } else {
        copy_channels(from, to, inputs);
      }
    } else {
      clear_channels(to, inputs);
    }
  }
}

// Gathers all taps of a result, one row of taps after the other. `image` is the first channel of a
// group, (y0, x0) the first tap.
template <class From>
BESTOF_INLINE void gather_row(const Problem& p, const From* image, long y0, long x0, Bfloat16* to) {
  const long run = p.kernel_width * (p.in_channels / p.groups);
  const long line = p.in_width * p.in_channels;
  for (long r = 0; r < p.kernel_height; ++r, to += run) {
    const long y = y0 + r * p.dilation_y;
    if (0 <= y && y < p.in_height) {
      gather_taps(p, image + y * line, x0, to);
    } else {
      clear_channels(to, run);
    }
  }
}

// The same where a row of taps is one run of up to kShortRun elements:
// the stem of ResNet takes half of the time.
template <class From>
BESTOF_INLINE void gather_short(const Problem& p, const From* image, long y0, long x0,
                                Bfloat16* to) {
  const long inputs = p.in_channels, run = p.kernel_width * inputs, line = p.in_width * inputs;
  ShortRun elements = {first_elements(run), first_elements(run)};
  if (x0 < 0 || x0 + p.kernel_width > p.in_width) {
    const TapRange inside = taps_inside(p, x0);
    elements.inside = first_elements(inside.end * inputs) & ~first_elements(inside.begin * inputs);
  }
  const From* from = image + y0 * line + x0 * inputs;
  const long step = p.dilation_y * line;
  for (long r = 0, y = y0; r < p.kernel_height; ++r, y += p.dilation_y, to += run, from += step) {
    if (0 <= y && y < p.in_height) {
      copy_run(from, to, elements);
    } else {
      clear_run(to, elements);
    }
  }
}

// Gathers the rows of `count` results from `first` on. `x` is the first channel of a group.
template <class From>
inline void gather_block(const Problem& p, const Gathering& g, const From* x, long first,
                         long count, Bfloat16* to) {
  const long inputs = p.in_channels / p.groups;
  const long depth = p.kernel_height * p.kernel_width * inputs;
  const bool brief = one_run(p) && p.kernel_width * inputs <= kShortRun;
  const long pixels = p.in_height * p.in_width * p.in_channels;
  long column = first % p.out_width, row = first / p.out_width % p.out_height;
  const From* image = x + first / p.out_width / p.out_height * pixels;
  for (long i = 0; i < count; ++i, to += g.stride) {
    const long y0 = row * p.stride_y - p.pad_top, x0 = column * p.stride_x - p.pad_left;
    if (brief) {
      gather_short(p, image, y0, x0, to);
    } else {
      gather_row(p, image, y0, x0, to);
    }
    clear_channels(to + depth, g.steps * kTileDepth - depth);
    if (++column < p.out_width) continue;
    column = 0;
    if (++row < p.out_height) continue;
    row = 0;
    image += pixels;
  }
}

// Multiplies gathered rows by the panels [begin, end) of one group. Where depth is short, all
// panels pass before the next 32 rows, so that a result of neighbouring panels is written at once.
template <class Out>
inline void multiply_gathered(const Problem& p, const Gathering& g, const Bfloat16* rows,
                              long first, long count, long group, long begin, long end,
                              const Bfloat16* packed, Out* y, const Epilogue& epilogue,
                              float* sums) {
  const TileDepth depth = tile_depth(p);
  const long outputs = p.out_channels / p.groups, panels = divide_up(outputs, kPanel);
  const long height = g.steps <= kUncutSteps ? kBlockHeight : count;
  for (long row = 0; row < count; row += height) {
    const long some = smaller(count - row, height);
    for (long panel = begin; panel < end; ++panel) {
      const Target<Out> target =
          target_at(panel_target(p, y, epilogue, group * outputs + panel * kPanel), first + row, 0);
      multiply_block(rows + row * g.stride, g.stride, some,
                     packed + (group * panels + panel) * panel_elements(depth), depth.size,
                     smaller(outputs - panel * kPanel, kPanel), target, sums);
    }
  }
}

inline long gathered_floats(const Problem& p, int threads) {
  return threads * gathering_of(p, threads).own_floats;
}

template <class Element>
inline void run_gathered(const Problem& p, const Element* x, const Bfloat16* packed, Element* y,
                         const Epilogue& epilogue, float* scratch, int threads) {
  const Gathering g = gathering_of(p, threads);
  const long panels = divide_up(p.out_channels / p.groups, kPanel);
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
        multiply_gathered(p, g, rows, first, count, group, part_begin(panels, g.shares.parts, part),
                          part_begin(panels, g.shares.parts, part + 1), packed, y, epilogue, sums);
      }
    }
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
