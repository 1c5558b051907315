// An implicit GEMM by the tile registers of AMX, from a spread image (conv/spread_axis.h): a block
// of it is copied once, and each tap reads the rows of its tiles from there. Sixteen neighbouring
// positions are the rows of a tile, across the ends of lines.
#pragma once
#include <omp.h>

#include "conv/copied_channels.h"
#include "conv/shares.h"
#include "conv/spread_axis.h"
#include "conv/tile_weights.h"

namespace bestof {
namespace BESTOF_TARGET {

// Positions that a chunk of a panel in L1 serves. Their sums take 32 KiB.
constexpr long kPositions = 256;

// The lines of all images form one column: line j of image n is line n * rows.length + j.
struct Spread {
  SpreadAxis rows, columns;
  long pixel;   // the distance of positions in elements: an odd number of cache lines
  long inputs;  // of a group, padded
  long lines;   // of results
  TileShares shares;
  long plane;                // positions of a plane of a block
  long offsets, own_floats;  // floats of scratch: of all threads, and of each
};

// 1x1 without strides and pads needs no image, so the block may end anywhere.
inline Problem flattened(const Problem& p) {
  const bool pointwise = p.kernel_height == 1 && p.kernel_width == 1 && p.stride_y == 1 &&
                         p.stride_x == 1 && p.out_height == p.in_height &&
                         p.out_width == p.in_width && p.pad_top == 0 && p.pad_left == 0;
  if (!pointwise) return p;
  Problem flat = p;
  flat.in_height = flat.out_height = p.batch * p.in_height * p.in_width;
  flat.batch = flat.in_width = flat.out_width = 1;
  return flat;
}

inline Spread spread_of(const Problem& p, int threads) {
  Spread s;
  s.rows =
      spread_axis(p.in_height, p.out_height, p.kernel_height, p.stride_y, p.dilation_y, p.pad_top);
  s.columns =
      spread_axis(p.in_width, p.out_width, p.kernel_width, p.stride_x, p.dilation_x, p.pad_left);
  s.inputs = round_up(p.in_channels / p.groups, kTileDepth);
  s.pixel = row_stride(p.groups * s.inputs);
  s.lines = (p.batch - 1) * s.rows.length + s.rows.out;
  const long line = s.rows.planes * s.columns.planes * s.columns.length * s.pixel;
  // In a quarter of L2: 3x3 layers take 0.95 to 0.99 of their time in half of it. If L2 cannot hold
  // the weights, each block reads them from L3 or memory: then in half.
  const long panels = divide_up(p.out_channels / p.groups, kPanel);
  const long weights = 2 * p.groups * panels * panel_elements(tile_depth(p));
  const long share = weights <= level2_bytes() ? 8 : 4;
  const long fitting = level2_bytes() / share / line - s.rows.reach;
  s.shares =
      share_rows(s.lines, fitting, s.lines * s.columns.length, p.out_channels / p.groups, threads);
  s.plane = (s.shares.rows + s.rows.reach) * s.columns.length + s.columns.reach + kBlockHeight;
  s.offsets = round_up(2 * tile_depth(p).all_steps(), 16);
  const long elements = s.rows.planes * s.columns.planes * s.plane * s.pixel;
  s.own_floats = sums_floats(kPositions) + elements / 2;
  return s;
}

// The offsets of all steps of depth from the position of a result.
inline void step_offsets(const Problem& p, const Spread& s, long* offset) {
  for (long c = 0; c < s.inputs; c += kTileDepth) {
    for (long r = 0; r < p.kernel_height; ++r) {
      for (long t = 0; t < p.kernel_width; ++t) {
        const long plane = s.rows.plane(r) * s.columns.planes + s.columns.plane(t);
        const long shift = s.rows.shift(r) * s.columns.length + s.columns.shift(t);
        *offset++ = (plane * s.plane + shift) * s.pixel + c;
      }
    }
  }
}

// Steps of a chunk: all taps of some channels, so that their pixels stay in L1. Layers of 3x3 take
// 0.87 to 0.97 of the time of chunks that follow tap by tap.
BESTOF_INLINE long spread_chunk(long taps) {
  if (taps == 1) return kChunkSteps;
  return taps <= kUncutSteps ? kUncutSteps / taps * taps : kUncutSteps;
}

// Copies one line of one plane. `from` is its row of the input, or null where all is zero.
template <class From>
inline void spread_line(const Problem& p, const Spread& s, const From* from, long plane,
                        Bfloat16* to) {
  const long begin = from ? s.columns.begin(plane) : s.columns.length;
  const long end = from ? s.columns.end(plane) : s.columns.length;
  const long inputs = p.in_channels / p.groups, step = p.stride_x * p.in_channels;
  clear_channels(to, begin * s.pixel);
  Bfloat16* pixel = to + begin * s.pixel;
  if (from) from += (begin * p.stride_x + s.columns.first(plane)) * p.in_channels;
  for (long q = begin; q < end; ++q, from += step, pixel += s.pixel) {
    if (inputs == s.inputs) {
      copy_channels(from, pixel, p.in_channels);
      continue;
    }
    for (long group = 0; group < p.groups; ++group) {
      copy_channels(from + group * inputs, pixel + group * s.inputs, inputs);
      clear_channels(pixel + group * s.inputs + inputs, s.inputs - inputs);
    }
  }
  clear_channels(pixel, larger(s.columns.length - end, 0) * s.pixel);
}

// Copies what the lines [first, first + count) of results read.
template <class From>
inline void spread_block(const Problem& p, const Spread& s, const From* x, long first, long count,
                         Bfloat16* to) {
  for (long py = 0; py < s.rows.planes; ++py) {
    for (long px = 0; px < s.columns.planes; ++px) {
      Bfloat16* line = to + (py * s.columns.planes + px) * s.plane * s.pixel;
      for (long j = first; j < first + count + s.rows.reach; ++j) {
        const long image = j / s.rows.length;
        const long y = j % s.rows.length * p.stride_y + s.rows.first(py);
        const bool inside = image < p.batch && 0 <= y && y < p.in_height;
        const From* row =
            inside ? x + (image * p.in_height + y) * p.in_width * p.in_channels : nullptr;
        spread_line(p, s, row, px, line);
        line += s.columns.length * s.pixel;
      }
      // The padding behind the last line.
      clear_channels(line, s.columns.shared * s.pixel);
    }
  }
}

// Finishes the sums of `count` positions, the first of them `at` positions behind the first result.
template <class Out>
inline void finish_positions(const Problem& p, const Spread& s, const float* sums, long at,
                             long count, const Target<Out>& target, long outputs) {
  if (s.rows.length == p.out_height && s.columns.length == p.out_width)
    return finish_panel(sums, count, target_at(target, at, 0), outputs);
  long line = at / s.columns.length, column = at % s.columns.length;
  while (count > 0) {
    const long some = smaller(count, s.columns.length - column);
    const long wanted = smaller(some, p.out_width - column);
    const long image = line / s.rows.length, y = line % s.rows.length;
    if (wanted > 0 && y < p.out_height) {
      const long pixel = (image * p.out_height + y) * p.out_width + column;
      finish_panel(sums, wanted, target_at(target, pixel, 0), outputs);
    }
    sums += some * kPanel;
    count -= some;
    column = 0;
    ++line;
  }
}

// Multiplies a copied block by the panels [begin, end) of one group.
template <class Out>
inline void multiply_spread(const Problem& p, const Spread& s, const Bfloat16* block, long first,
                            long count, long group, long begin, long end, const Bfloat16* packed,
                            const long* offset, Out* y, const Epilogue& epilogue, float* sums) {
  const TileDepth depth = tile_depth(p);
  const long outputs = p.out_channels / p.groups, panels = divide_up(outputs, kPanel);
  const long start = first * s.columns.length;
  const long positions = count * s.columns.length - (s.columns.length - p.out_width);
  for (long panel = begin; panel < end; ++panel) {
    const Target<Out> target = panel_target(p, y, epilogue, group * outputs + panel * kPanel);
    const Bfloat16* weights = packed + (group * panels + panel) * panel_elements(depth);
    for (long at = 0; at < positions; at += kPositions) {
      multiply_steps(block + at * s.pixel + group * s.inputs, s.pixel,
                     smaller(positions - at, kPositions), weights, StepsAnywhere{offset},
                     depth.all_steps(), spread_chunk(depth.parts), sums,
                     [&](const float* from, long row, long n) {
                       finish_positions(p, s, from, start + at + row, n, target,
                                        smaller(outputs - panel * kPanel, kPanel));
                     });
    }
  }
}

inline long spread_floats(const Problem& given, int threads) {
  const Spread s = spread_of(flattened(given), threads);
  return s.offsets + threads * s.own_floats;
}

template <class Element>
inline void run_spread(const Problem& given, const Element* x, const Bfloat16* packed, Element* y,
                       const Epilogue& epilogue, float* scratch, int threads) {
  const Problem p = flattened(given);
  const Spread s = spread_of(p, threads);
  long* offset = reinterpret_cast<long*>(scratch);
  step_offsets(p, s, offset);
  const long panels = divide_up(p.out_channels / p.groups, kPanel);
  Shares shares(s.shares.blocks * s.shares.parts, threads);
#pragma omp parallel num_threads(threads)
  {
    const TileRegisters registers;
    const long thread = omp_get_thread_num();
    float* sums = scratch + s.offsets + thread * s.own_floats;
    Bfloat16* block = halves(sums + sums_floats(kPositions));
    long copied = -1;
    for (long item = shares.take(thread); item >= 0; item = shares.take(thread)) {
      const long at = item / s.shares.parts, part = item % s.shares.parts;
      const long first = part_begin(s.lines, s.shares.blocks, at);
      const long count = part_begin(s.lines, s.shares.blocks, at + 1) - first;
      if (copied != at) spread_block(p, s, x, first, count, block);
      copied = at;
      for (long group = 0; group < p.groups; ++group) {
        multiply_spread(p, s, block, first, count, group, part_begin(panels, s.shares.parts, part),
                        part_begin(panels, s.shares.parts, part + 1), packed, offset, y, epilogue,
                        sums);
      }
    }
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
