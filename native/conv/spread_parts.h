// An implicit GEMM of float32 by tile registers of bfloat16, at the accuracy of float32: weights
// and pixels are sums of three parts (gemm/bfloat16_parts.h). Each pixel of a block of a spread
// image (conv/spread_axis.h) is split once, and all taps read its parts. Results that see pixels
// without parts, or have weights without, are multiplied by vectors.
#pragma once
#include <omp.h>

#include "conv/pixel_parts.h"
#include "conv/spread_block.h"
#include "gemm/parts_block.h"

namespace bestof {
namespace BESTOF_TARGET {

// Tiles add 6 products a step. A chain of sums is cut after 768 of them (gemm/micro_kernel.h).
constexpr long kChainSteps = 128;

// Steps of a panel that are asked for in advance: 48 KiB.
constexpr long kStepsAhead = 8;

// Each tap is padded to whole steps.
inline TileDepth part_depth(const Problem& p) {
  const long inputs = p.in_channels / p.groups;
  return {p.kernel_height * p.kernel_width, inputs, divide_up(inputs, kTileDepth)};
}

// Packed weights: [group][panel] of parts, then for each of them the scales of its outputs.
struct WeightParts {
  TileDepth depth;
  long outputs, panels, all;  // of a group, and of all groups

  explicit WeightParts(const Problem& p)
      : depth(part_depth(p)),
        outputs(p.out_channels / p.groups),
        panels(divide_up(outputs, kPanel)),
        all(p.groups * panels) {}
  long panel(long i) const { return i * depth.all_steps() * kStepElements / 2; }
  long scale(long i) const { return panel(all) + i * kPanel; }
  long floats() const { return scale(all); }
};

inline void pack_weight_parts(const Problem& p, const float* w, float* packed, int threads) {
  const WeightParts parts(p);
  const long row = parts.depth.parts * parts.depth.size;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long i = 0; i < parts.all; ++i) {
    const long first = i % parts.panels * kPanel;
    const View from = {w + (i / parts.panels * parts.outputs + first) * row, row, 1};
    pack_parts(from, parts.depth, smaller(parts.outputs - first, kPanel),
               halves(packed + parts.panel(i)), packed + parts.scale(i));
  }
}

// The rows of tiles in a block: neighbouring positions, at the offset of each step.
struct SpreadRows {
  const Bfloat16* rows;
  const long* offset;
  long apart, pixel;  // the distances of parts and of positions

  template <int kTile>
  BESTOF_INLINE void load(int part) const {
    load_tile<4 + kTile>(rows + *offset + part * apart + kTile * kTileHeight * pixel,
                         pixel * sizeof(Bfloat16));
  }
  BESTOF_INLINE void advance() { ++offset; }
};

// The results of positions from `at` on.
struct SpreadResults {
  const Problem* p;
  const Spread* s;
  Target<float> target;
  long at, outputs;

  long height() const { return 4; }
  void finish(const float* sums, long row, long count) const {
    finish_positions(*p, *s, sums, at + row, count, target, outputs);
  }
};

// Sums that wait, while the panel that is multiplied is asked for in advance: `lines` cache lines
// at each of the six turns of a step.
struct FetchingSums {
  WaitingSums<SpreadResults>& waiting;
  const Bfloat16* from;
  long lines;

  void finish(long step, long steps) { waiting.finish(step, steps); }
  void proceed() {
    for (long line = 0; line < lines; ++line, from += kTileDepth) __builtin_prefetch(from, 0, 2);
  }
};

// Results that are replaced together, and the steps of depth that these take at once.
constexpr int kTogether = 8;
constexpr long kWholeSteps = 6;
constexpr long kWholeDepth = kWholeSteps * kTileDepth;

// What a thread multiplies: lines of results, and its scratch.
struct PartsBlock {
  const Problem& p;
  const Spread& s;
  const WeightParts& weights;
  const float* x;
  const float* packed;
  const long* offset;
  float* y;
  const Epilogue& epilogue;
  float* scratch;
  Bfloat16* pixels = nullptr;
  long first = 0, lines = 0;      // of results
  long start = 0, positions = 0;  // of results
  bool all_fit = true;

  static constexpr long kSums = kBlockHeight * kPanel;
  static constexpr long kFloats = 3 * kSums + kTogether * kWholeDepth + kWholeDepth * kPanel;
  float* cut() const { return scratch + 2 * kSums; }
  float* gathered() const { return cut() + kSums; }  // [kTogether][kWholeDepth]
  float* joined() const { return gathered() + kTogether * kWholeDepth; }

  // Takes lines of results, whose pixels are at `to`.
  void place(long block, Bfloat16* to) {
    first = part_begin(s.lines, s.shares.blocks, block);
    lines = part_begin(s.lines, s.shares.blocks, block + 1) - first;
    start = first * s.columns.length;
    positions = lines * s.columns.length - (s.columns.length - p.out_width);
    pixels = to;
  }

  // Splits part `part` of `parts` of the lines that are read. Returns whether all pixels fit tiles.
  bool split(long part, long parts) const {
    const long inputs = weights.depth.size, all = lines + s.rows.reach;
    PixelSplitter splitter;
    spread_lines(p, s, x, first, part_begin(all, parts, part), part_begin(all, parts, part + 1),
                 all, pixels, [&](const float* from, Bfloat16* to) {
                   for (long group = 0; group < p.groups; ++group) {
                     splitter.split(from + group * inputs, inputs, s.inputs,
                                    to + group * kParts * s.inputs);
                   }
                 });
    return splitter.all_fit();
  }

  // Copies the channels that position `at` reads in the steps [first, last), tails zero.
  void gather(long group, long at, long first, long last, float* to) const {
    const long position = start + at;
    const long line = position / s.columns.length, column = position % s.columns.length;
    const long image = line / s.rows.length, row = line % s.rows.length;
    for (long step = first; step < last; ++step, to += kTileDepth) {
      const long tap = step % s.depth.parts;
      const long count = s.depth.count(step);
      const long y = row * p.stride_y - p.pad_top + tap / p.kernel_width * p.dilation_y;
      const long c = column * p.stride_x - p.pad_left + tap % p.kernel_width * p.dilation_x;
      const bool inside = image < p.batch && 0 <= y && y < p.in_height && 0 <= c && c < p.in_width;
      const float* from = x + ((image * p.in_height + y) * p.in_width + c) * p.in_channels +
                          group * s.depth.size + step / s.depth.parts * kTileDepth;
      const long some = inside ? count : 0;
      for (long k = 0; k < kTileDepth; ++k) to[k] = k < some ? from[k] : 0.0f;
    }
  }

  // Whether the result at position `at` fits tiles.
  bool fits(long group, long at) const {
    unsigned most = 0;
    for (long step = 0; step < s.depth.all_steps(); ++step) {
      float channels[kTileDepth];
      gather(group, at, step, step + 1, channels);
      most = larger(most, largest_magnitude(channels, kTileDepth));
    }
    return fits_tiles(most);
  }

  // Replaces sums of `n` positions from `at` on by those that vectors compute.
  __attribute__((noinline)) void replace(long group, long at, long n, const Bfloat16* panel,
                                         const PanelScale& scale, float* to) const {
    for (long i = 0; i < n; i += kTogether, to += kTogether * kPanel) {
      const long some = smaller(n - i, static_cast<long>(kTogether));
      bool whole[kTogether] = {}, needed = scale.incomplete;
      for (long j = 0; !all_fit && j < some; ++j) {
        whole[j] = !fits(group, at + i + j);
        needed |= whole[j];
      }
      if (!needed) continue;
      Accumulator<kTogether> total, acc;
      clear(total);
      for (long step = 0; step < s.depth.all_steps(); step += kWholeSteps) {
        const long last = smaller(step + kWholeSteps, s.depth.all_steps());
        const long depth = (last - step) * kTileDepth;
        for (long j = 0; j < kTogether; ++j)
          gather(group, at + i + smaller(j, some - 1), step, last, gathered() + j * kWholeDepth);
        join_panel<Pairing::kNeighbours>(panel + step * kStepElements, depth, scale, joined());
        clear(acc);
        accumulate<0>(acc, gathered(), kWholeDepth, depth, joined(), joined());
        add(total, acc);
      }
      for (long j = 0; j < some; ++j) {
        for (int v = 0; v < kPanelVectors; ++v) {
          float* sum = to + j * kPanel + v * kLanes;
          const auto replaced = static_cast<__mmask16>(whole[j] ? ~0 : scale.whole[v]);
          store(sum, blended(replaced, load(sum), total.v[j][v]));
        }
      }
    }
  }

  // Multiplies `n` <= 32 positions by the steps [first, last) of a panel.
  template <class Waiting>
  void add_steps(SpreadRows rows, long n, const Bfloat16* panel, long first, long last,
                 Waiting& waiting, float* to) const {
    rows.offset += first;
    if (n > kTileHeight) {
      clear_sums<2>();
      add_parts(rows, panel + first * kStepElements, last - first, waiting);
      store_sums<2>(to, kPanel);
    } else {
      clear_sums<1>();
      add_parts_of_one(rows, panel + first * kStepElements, last - first, waiting);
      store_sums<1>(to, kPanel);
    }
  }

  // Multiplies all positions by panel `i` of `group`.
  void multiply(long group, long i, WaitingSums<SpreadResults>& waiting) const {
    const long steps = s.depth.all_steps(), chunks = divide_up(steps, kChainSteps);
    const long at_panel = group * weights.panels + i;
    const Bfloat16* panel = halves(packed + weights.panel(at_panel));
    const PanelScale scale = panel_scale(packed + weights.scale(at_panel));
    const Target<float> target = panel_target(p, y, epilogue, group * weights.outputs + i * kPanel);
    const ScaleExponent unscaled[kBlockHeight] = {};
    // If L2 cannot hold the weights, the first rows read them from L3 or memory.
    const bool streams = weights.floats() * 4 > level2_bytes() / 2;
    const long lines = streams ? kStepElements / kTileDepth / kCallsOfStep : 0;
    for (long at = 0; at < positions; at += kBlockHeight) {
      const long n = smaller(positions - at, kBlockHeight);
      const SpreadRows rows = {pixels + at * s.pixel + group * kParts * s.inputs, offset, s.inputs,
                               s.pixel};
      float* to = waiting.free();
      for (long chunk = 0; chunk < chunks; ++chunk) {
        const long first = part_begin(steps, chunks, chunk);
        FetchingSums sums_and_panel = {waiting, panel + (first + kStepsAhead) * kStepElements,
                                       at == 0 ? lines : 0};
        add_steps(rows, n, panel, first, part_begin(steps, chunks, chunk + 1), sums_and_panel,
                  chunk == 0 ? to : cut());
        for (long k = 0; chunk > 0 && k < n * kPanel; k += kLanes)
          store(to + k, load(to + k) + load(cut() + k));
      }
      if (scale.scaled) scale_sums(to, unscaled, n, scale);
      if (!all_fit || scale.incomplete) replace(group, at, n, panel, scale, to);
      waiting.take(n, {&p, &s, target, start + at, smaller(weights.outputs - i * kPanel, kPanel)});
    }
  }
};

// Blocks whose parts of panels several threads multiply are split by all threads before. Others are
// split by the thread that takes them.
inline bool splits_before(const Spread& s) {
  return s.shares.parts > 1;
}

inline long blocks_in_scratch(const Spread& s, int threads) {
  return splits_before(s) ? s.shares.blocks : threads;
}

inline long spread_parts_floats(const Problem& given, int threads) {
  const Spread s = spread_of(flattened(given), part_depth(given), kParts, threads);
  return s.offsets + blocks_in_scratch(s, threads) * s.block + threads * PartsBlock::kFloats;
}

inline void run_spread_parts(const Problem& given, const Call& call) {
  const Problem p = flattened(given);
  const Spread s = spread_of(p, part_depth(p), kParts, call.threads);
  const WeightParts weights(p);
  const bool before = splits_before(s);
  long* offset = reinterpret_cast<long*>(call.scratch);
  step_offsets(p, s, offset);
  float* blocks = call.scratch + s.offsets;
  float* own = blocks + blocks_in_scratch(s, call.threads) * s.block;
  Shares shares(s.shares.blocks * s.shares.parts, call.threads);
  bool all_fit = true;
#pragma omp parallel num_threads(call.threads)
  {
    const TileRegisters registers;
    const long thread = omp_get_thread_num();
    PartsBlock block = {p,
                        s,
                        weights,
                        floats(call.first),
                        floats(call.second),
                        offset,
                        floats(call.result),
                        call.epilogue,
                        own + thread * PartsBlock::kFloats};
    if (before) {
#pragma omp for schedule(static)
      for (long i = 0; i < s.shares.blocks * call.threads; ++i) {
        block.place(i / call.threads, halves(blocks + i / call.threads * s.block));
        if (block.split(i % call.threads, call.threads)) continue;
#pragma omp atomic write
        all_fit = false;
      }
    }
    long at = -1;
    for (long item = shares.take(thread); item >= 0; item = shares.take(thread)) {
      const long part = item % s.shares.parts;
      if (at != item / s.shares.parts) {
        at = item / s.shares.parts;
        block.place(at, halves(blocks + (before ? at : thread) * s.block));
        block.all_fit = before ? all_fit : block.split(0, 1);
      }
      WaitingSums<SpreadResults> waiting(block.scratch);
      for (long group = 0; group < p.groups; ++group) {
        const long end = part_begin(weights.panels, s.shares.parts, part + 1);
        for (long i = part_begin(weights.panels, s.shares.parts, part); i < end; ++i)
          block.multiply(group, i, waiting);
      }
      waiting.finish_all();
    }
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
