// An implicit GEMM by the tile registers of AMX, from a spread image (conv/spread_axis.h): a block
// of it is copied once, and each tap reads the rows of its tiles from there. Sixteen neighbouring
// positions are the rows of a tile, across the ends of lines.
#pragma once
#include <omp.h>

#include "conv/spread_block.h"

namespace bestof {
namespace BESTOF_TARGET {

// Positions that a chunk of a panel in L1 serves. Their sums take 32 KiB.
constexpr long kPositions = 256;

// Steps of a chunk: all taps of some channels, so that their pixels stay in L1. Layers of 3x3 take
// 0.87 to 0.97 of the time of chunks that follow tap by tap.
BESTOF_INLINE long spread_chunk(long taps) {
  if (taps == 1) return kChunkSteps;
  return taps <= kUncutSteps ? kUncutSteps / taps * taps : kUncutSteps;
}

// Copies the channels of a pixel, those of each group padded.
template <class From>
inline void copy_groups(const Problem& p, const Spread& s, const From* from, Bfloat16* to) {
  const long inputs = p.in_channels / p.groups;
  if (inputs == s.inputs) return copy_channels(from, to, p.in_channels);
  for (long group = 0; group < p.groups; ++group) {
    copy_channels(from + group * inputs, to + group * s.inputs, inputs);
    clear_channels(to + group * s.inputs + inputs, s.inputs - inputs);
  }
}

// Multiplies a copied block by the panels [begin, end) of one group.
template <class Out>
inline void multiply_spread(const Problem& p, const Spread& s, const Bfloat16* block, long first,
                            long count, long group, long begin, long end, const Bfloat16* packed,
                            const long* offset, Out* y, const Epilogue& epilogue, float* sums) {
  const TileDepth& depth = s.depth;
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
  const Spread s = spread_of(flattened(given), tile_depth(given), 1, threads);
  return s.offsets + threads * (sums_floats(kPositions) + s.block);
}

template <class Element>
inline void run_spread(const Problem& given, const Element* x, const Bfloat16* packed, Element* y,
                       const Epilogue& epilogue, float* scratch, int threads) {
  const Problem p = flattened(given);
  const Spread s = spread_of(p, tile_depth(p), 1, threads);
  long* offset = reinterpret_cast<long*>(scratch);
  step_offsets(p, s, offset);
  const long panels = divide_up(p.out_channels / p.groups, kPanel);
  Shares shares(s.shares.blocks * s.shares.parts, threads);
#pragma omp parallel num_threads(threads)
  {
    const TileRegisters registers;
    const long thread = omp_get_thread_num();
    float* sums = scratch + s.offsets + thread * (sums_floats(kPositions) + s.block);
    Bfloat16* block = halves(sums + sums_floats(kPositions));
    long copied = -1;
    for (long item = shares.take(thread); item >= 0; item = shares.take(thread)) {
      const long at = item / s.shares.parts, part = item % s.shares.parts;
      const long first = part_begin(s.lines, s.shares.blocks, at);
      const long count = part_begin(s.lines, s.shares.blocks, at + 1) - first;
      if (copied != at) {
        spread_block(p, s, x, first, count, block,
                     [&](const Element* from, Bfloat16* to) { copy_groups(p, s, from, to); });
      }
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
