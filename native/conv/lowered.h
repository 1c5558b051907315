// A convolution as GEMM. Rows are output pixels, found through pointers. The reduction runs over
// taps and channels. `In` is the element of the products, `Out` that of the results.
#pragma once
#include <omp.h>

#include "conv/epilogue.h"
#include "conv/problem.h"
#include "conv/row_block.h"
#include "conv/shares.h"
#include "conv/weights.h"
#include "gemm/micro_kernel.h"
#include "gemm/pair_kernel.h"
#include "simd/isa.h"

namespace bestof {
namespace BESTOF_TARGET {

// Rows of one block. Its part of A takes up to half of L2, because each block streams all of B from
// L3 or memory. If there are several threads, there are enough blocks for all of them, unless B is
// larger than A and its panels are enough: 196 rows of 512 by 1,024 columns took 502 us in four
// blocks, 441 in one (Zen 5, two threads, in ResNeXt50).
BESTOF_INLINE long block_rows(long total, long row_floats, long panel_floats, long panels,
                              int threads) {
  long rows = larger(level2_bytes() / 8 / larger(row_floats, 1), 4 * kTileRows);
  rows = smaller(rows, 32 * kTileRows);
  const bool by_panels = panels >= 4L * threads && panels * panel_floats > total * row_floats;
  if (threads > 1 && !(by_panels && total <= rows))
    rows = smaller(rows, larger(divide_up(total, 4L * threads), 4 * kTileRows));
  const long blocks = larger(divide_up(total, rows), 1);
  return larger(divide_up(total, blocks), 1);
}

// The number of parts that the panels are cut into: with few blocks, every thread still gets work.
BESTOF_INLINE long panel_parts(long blocks, long panels, int threads) {
  if (blocks >= 4L * threads || threads == 1) return 1;
  return smaller(panels, divide_up(4L * threads, larger(blocks, 1)));
}

template <class In>
struct Columns {
  const In* packed;  // panels of this group
  long first, last;  // panels
  long count;        // output channels of this group
  long channel;      // the first of them
};

// Finishes the sums of a tile, kPanel apart: of one that ends in the middle of its panel, or has an
// activation that is seldom. Out of line, because every size of every micro-kernel comes here.
template <class Out>
__attribute__((noinline)) inline void finish_rows(const float* sums, long rows, long columns,
                                                  Out* const* out, long channel,
                                                  const Epilogue& given, const Out* result) {
  const Epilogue epilogue = given;  // stores cannot change this copy
  for (long j = 0; j < columns; j += kLanes) {
    const auto place = [&](long i) { return out[i] + channel + j; };
    finish_pixels(sums + j, kPanel, rows, place, smaller(columns - j, kLanes), channel + j,
                  epilogue, result);
  }
}

// Prefetches the lines of the results of a tile and of its residual, while products are computed. A
// write would otherwise wait for its line. `channel` is the first, `left` how many follow.
template <int V, int R, class Out>
BESTOF_INLINE void ask_for_tile(Out* const* out, long channel, long left, const Out* residual,
                                const Out* result) {
  const bool both = V > 1 && left > kLanes && sizeof(Out) == sizeof(float);
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
    const Out* to = out[i] + channel;
    __builtin_prefetch(to, 1, 3);
    if (both) __builtin_prefetch(to + kLanes, 1, 3);
  }
  if (residual) {
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const Out* from = residual + (out[i] - result) + channel;
      __builtin_prefetch(from, 0, 3);
      if (both) __builtin_prefetch(from + kLanes, 0, 3);
    }
  }
}

// Finishes the sums of a tile, and writes them.
template <int V, int R, class Out>
BESTOF_INLINE void write_tile(const Accumulator<R, V>& acc, Out* const* places, long channel,
                              long left, const Epilogue& epilogue, const Out* result) {
  const Out* residual = reinterpret_cast<const Out*>(epilogue.residual);
  if (left >= V * kLanes && is_bounded(epilogue.activation)) {
    const Bounds bounds(epilogue.activation);
    Vec bias[V];
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) bias[j] = bias_at(epilogue, channel + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      Out* out = places[i] + channel;
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) {
        Vec v = acc.v[i][j] + bias[j];
        if (residual) v += load(residual + (out - result) + j * kLanes);
        store(out + j * kLanes, bounds(v));
      }
    }
    return;
  }
  float sums[R * kPanel];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) store(sums + i * kPanel + j * kLanes, acc.v[i][j]);
  }
  finish_rows(sums, R, smaller(left, kPanel), places, channel, epilogue, result);
}

template <Walk kWalk, int V, int R, class In, class Out>
inline void multiply_tile(const RowBlock<In, Out>& block, long first, const TileRows<In>& rows,
                          const Columns<In>& columns, long panel, const Epilogue& given,
                          const Out* result, const In* next) {
  // A copy stays in registers. The original could be aliased by the results that are stored.
  const Epilogue epilogue = given;
  const long done = panel * kPanel, channel = columns.channel + done, left = columns.count - done;
  Out* const* places = block.out + first;
  ask_for_tile<V, R>(places, channel, left, reinterpret_cast<const Out*>(epilogue.residual),
                     result);
  Accumulator<R, V> acc;
  multiply<kWalk>(acc, rows, block.taps, block.depth,
                  columns.packed + panel * block.taps * packed_depth<In>(block.depth) * kPanel,
                  next);
  write_tile<V, R>(acc, places, channel, left, epilogue, result);
}

template <Walk kWalk, int V, int R, class In, class Out>
BESTOF_INLINE void multiply_rows(long count, const RowBlock<In, Out>& block, long first,
                                 const TileRows<In>& rows, const Columns<In>& columns, long panel,
                                 const Epilogue& epilogue, const Out* result, const In* next) {
  if constexpr (R > 0) {
    if (count == R)
      return multiply_tile<kWalk, V, R>(block, first, rows, columns, panel, epilogue, result, next);
    multiply_rows<kWalk, V, R - 1>(count, block, first, rows, columns, panel, epilogue, result,
                                   next);
  }
}

// Computes a tile of `count` rows by a panel. Half a panel is computed where half of it has
// columns: 16 outputs of 32 channels @112 take 0.77 of the time, 40 of 120 @28 0.78, 80 of 240 @14
// 0.87.
template <Walk kWalk, class In, class Out>
inline void multiply_panel(long count, const RowBlock<In, Out>& block, long first,
                           const TileRows<In>& rows, const Columns<In>& columns, long panel,
                           const Epilogue& epilogue, const Out* result, const In* next) {
  if (columns.count - panel * kPanel <= kLanes)
    return multiply_rows<kWalk, 1, kTileRows>(count, block, first, rows, columns, panel, epilogue,
                                              result, next);
  multiply_rows<kWalk, kPanelVectors, kTileRows>(count, block, first, rows, columns, panel,
                                                 epilogue, result, next);
}

// The walk that asks for one line a step, a half of a panel.
template <class In>
constexpr Walk kFetchingHalf =
    sizeof(In) == sizeof(float) ? Walk::kRegularFetchingHalf : Walk::kRegularFetching;

// Computes `count` rows by the panels of `columns`. `offset` is the first input channel of the
// group. Rows that were copied are regular, and in L2 already.
template <bool kCopied, class In, class Out>
inline void multiply_block(const RowBlock<In, Out>& block, long count, long offset,
                           const Columns<In>& columns, const Epilogue& epilogue,
                           const Out* result) {
  const TileCut cut = cut_rows(count);
  // If rows lie one behind the other, those of the next tile are prefetched before the first panel,
  // one line at each step.
  [[maybe_unused]] const bool dense = block.taps == 1 && block.stride == block.depth;
  const long panel_size = block.taps * packed_depth<In>(block.depth) * kPanel;
  for (long panel = columns.first; panel < columns.last; ++panel) {
    const In* following = columns.packed + (panel + 1) * panel_size;
    for (long t = 0; t < cut.tiles; ++t) {
      const long first = cut.begin(t), rows = cut.begin(t + 1) - first, left = cut.tiles - t;
      const TileRows<In> tile = {block.row + first, block.leading, offset, block.stride};
      // B streams from L3 or memory: each of the last two tiles of a panel asks for half the next.
      const bool fetches = left <= 2 && block.taps == 1 && panel + 1 < columns.last;
      const In* half = following + (2 - left) * (panel_size / 2);
      if constexpr (kCopied) {
        if (fetches) {
          multiply_panel<kFetchingHalf<In>>(rows, block, first, tile, columns, panel, epilogue,
                                            result, half);
          continue;
        }
        multiply_panel<Walk::kRegular>(rows, block, first, tile, columns, panel, epilogue, result,
                                       tile.row[0]);
      } else {
        bool regular = true;
        for (long i = 1; i < rows; ++i) regular = regular && block.regular[first + i];
        const In* next = tile.row[0] + offset + rows * block.stride;
        if (regular && dense && panel == columns.first) {
          multiply_panel<Walk::kRegularFetching>(rows, block, first, tile, columns, panel, epilogue,
                                                 result, next);
        } else if (regular && fetches) {
          multiply_panel<kFetchingHalf<In>>(rows, block, first, tile, columns, panel, epilogue,
                                            result, half);
        } else if (regular) {
          multiply_panel<Walk::kRegular>(rows, block, first, tile, columns, panel, epilogue, result,
                                         next);
        } else {
          multiply_panel<Walk::kAnywhere>(rows, block, first, tile, columns, panel, epilogue,
                                          result, next);
        }
      }
    }
  }
}

// Scratch of `convolve_grid`: zeros for taps outside the image; the input, if all of it is rounded
// first; then the pointers (and rows) of every thread.
struct GridScratch {
  long rows, blocks, parts, zeros, rounded, pointers, thread, total;
};

template <class In>
inline GridScratch grid_scratch(long pixels, long taps, long depth, long in_channels,
                                long out_channels, bool copy, long rounded, int threads) {
  GridScratch s;
  const long panels = divide_up(out_channels, kPanel), panel = taps * depth * kPanel;
  // Without a copy, the taps of neighbours read the same pixels.
  s.rows = block_rows(pixels, floats_of<In>(copy ? taps * depth : in_channels),
                      copy ? 0 : floats_of<In>(panel), panels, threads);
  s.blocks = divide_up(pixels, s.rows);
  s.parts = panel_parts(s.blocks, panels, threads);
  s.zeros = round_up(in_channels, 16);
  s.rounded = round_up(floats_of<In>(rounded), 16);
  s.pointers = row_block_floats(s.rows, taps);
  const long copied = floats_of<In>(s.rows * copied_stride<In>(taps * packed_depth<In>(depth)));
  s.thread = s.pointers + (copy ? row_block_floats(s.rows, 1) + copied : 0);
  s.total = s.zeros + s.rounded + threads * s.thread;
  return s;
}

// Computes one thread's part of a grid. With `copy`, rows of a block are gathered (im2row) and if
// needed rounded to `In` first. Without, taps are read where they lie (implicit GEMM).
template <class In, bool kCopy, class From, class Out>
inline void convolve_blocks(const Grid& grid, const From* input, const In* packed, Out* output,
                            long groups, const Epilogue& epilogue, const From* zeros, float* mine,
                            const GridScratch& s, Shares& shares) {
  const long pixels = grid.batch * grid.rows * grid.columns;
  const long depth = grid.in_channels / groups, outputs = grid.out_channels / groups;
  const long taps = grid.taps_y * grid.taps_x, panels = divide_up(outputs, kPanel);
  RowBlock<From, Out> block =
      place_row_block<From, Out>(mine, s.rows, taps, depth, grid.step_x * grid.in_channels);
  RowBlock<In, Out> copied;
  long pointed = -1;
  const long thread = omp_get_thread_num();
  for (long item = shares.take(thread); item >= 0; item = shares.take(thread)) {
    const long at = item / s.parts, part = item % s.parts;
    const long first = part_begin(pixels, s.blocks, at);
    const long count = part_begin(pixels, s.blocks, at + 1) - first;
    if (pointed != at) point_rows(grid, input, output, zeros, first, count, block);
    for (long group = 0; group < groups; ++group) {
      const Columns<In> columns = {
          packed + group * panels * taps * packed_depth<In>(depth) * kPanel,
          part_begin(panels, s.parts, part), part_begin(panels, s.parts, part + 1), outputs,
          group * outputs};
      if constexpr (kCopy) {
        // Parts of the panels share the copy of a block.
        if (pointed != at || groups > 1)
          copied = copy_rows<In>(block, count, group * depth, mine + s.pointers);
        multiply_block<true>(copied, count, 0, columns, epilogue, output);
      } else {
        multiply_block<false>(block, count, group * depth, columns, epilogue, output);
      }
    }
    pointed = at;
  }
}

// Runs a whole grid against packed weights.
template <class In, bool kCopy, class From, class Out>
inline void convolve_grid(const Grid& grid, const From* input, const In* packed, Out* output,
                          long groups, const Epilogue& epilogue, float* scratch, int threads) {
  const long pixels = grid.batch * grid.rows * grid.columns;
  if (pixels == 0) return;
  constexpr bool kRound = !kCopy && sizeof(From) != sizeof(In);
  const long elements = grid.batch * grid.in_height * grid.in_width * grid.in_channels;
  const GridScratch s = grid_scratch<In>(
      pixels, grid.taps_y * grid.taps_x, grid.in_channels / groups, grid.in_channels,
      grid.out_channels / groups, kCopy, kRound ? elements : 0, threads);
  for (long i = 0; i < s.zeros; ++i) scratch[i] = 0.0f;
  In* rounded = reinterpret_cast<In*>(scratch + s.zeros);
  Shares shares(s.blocks * s.parts, threads);
#pragma omp parallel num_threads(threads)
  {
    float* mine = scratch + s.zeros + s.rounded + omp_get_thread_num() * s.thread;
    if constexpr (kRound) {
      constexpr long kPart = 16384;
#pragma omp for schedule(static)
      for (long first = 0; first < elements; first += kPart) {
        round_or_copy(input + first, rounded + first, smaller(kPart, elements - first));
      }
      convolve_blocks<In, false>(grid, static_cast<const In*>(rounded), packed, output, groups,
                                 epilogue, reinterpret_cast<const In*>(scratch), mine, s, shares);
    } else {
      convolve_blocks<In, kCopy>(grid, input, packed, output, groups, epilogue,
                                 reinterpret_cast<const From*>(scratch), mine, s, shares);
    }
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
