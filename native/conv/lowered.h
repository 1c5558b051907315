// A convolution as GEMM: rows are output pixels, found through pointers; the reduction runs over taps and channels.
#pragma once
#include <omp.h>

#include "conv/epilogue.h"
#include "conv/problem.h"
#include "conv/weights.h"
#include "gemm/micro_kernel.h"
#include "simd/isa.h"

namespace bestof {
namespace BESTOF_TARGET {

// A grid of output pixels and the input pixel that each of its taps reads. Grid point (j, i) of an image writes output
// pixel (first_y + j * out_step_y, first_x + i * out_step_x), and tap (r, s) reads input pixel
// (j * step_y + dy[r], i * step_x + dx[s]), which is zero outside the image.
struct Grid {
  long batch, rows, columns;
  const float* input;
  long in_height, in_width, in_channels, step_y, step_x;
  const long* dy;
  const long* dx;
  long taps_y, taps_x;
  float* output;
  long out_height, out_width, out_channels, first_y, first_x, out_step_y, out_step_x;
};

// The rows of A, and where their results go, of up to a block of grid points.
struct RowBlock {
  const float** row;  // [taps][leading]
  float** out;        // [leading]
  bool* regular;      // [leading]: this row is `stride` past the one before it, under every tap
  long leading, taps, depth, stride;
};

// Rows of one block: its part of A takes up to half of L2, for each block streams all of B from beyond.
BESTOF_INLINE long block_rows(long total, long row_floats, int threads) {
  long rows = larger(level2_bytes() / 8 / larger(row_floats, 1), 4 * kTileRows);
  rows = smaller(rows, 32 * kTileRows);
  rows = smaller(rows, larger(divide_up(total, 4L * threads), 4 * kTileRows));  // enough blocks for every thread
  const long blocks = larger(divide_up(total, rows), 1);
  return larger(divide_up(total, blocks), 1);
}

// How many parts the panels are cut into, so that few blocks still feed every thread.
BESTOF_INLINE long panel_parts(long blocks, long panels, int threads) {
  if (blocks >= 4L * threads || threads == 1) return 1;
  return smaller(panels, divide_up(4L * threads, larger(blocks, 1)));
}

// Bytes of the pointers of a block, in floats and whole cache lines.
BESTOF_INLINE long row_block_floats(long rows, long taps) {
  return round_up(
      (rows * (taps + 1) * static_cast<long>(sizeof(void*)) + rows * static_cast<long>(sizeof(bool))) / 4 + 1, 16);
}

BESTOF_INLINE RowBlock place_row_block(float* scratch, long rows, long taps, long depth, long stride) {
  RowBlock block;
  block.row = reinterpret_cast<const float**>(scratch);
  block.out = reinterpret_cast<float**>(scratch) + rows * taps;
  block.regular = reinterpret_cast<bool*>(block.out + rows);
  block.leading = rows;
  block.taps = taps;
  block.depth = depth;
  block.stride = stride;
  return block;
}

// Points the block at grid points [first, first + count), numbered across images, rows and columns. `zeros` has
// in_channels zeros, for taps outside the image.
inline void point_rows(const Grid& g, const float* zeros, long first, long count, RowBlock& block) {
  const long plane = g.rows * g.columns;
  long n = first / plane, j = first % plane / g.columns, i = first % g.columns;
  const bool pointwise = g.taps_y == 1 && g.taps_x == 1;
  for (long at = 0; at < count; ++at) {
    block.out[at] =
        g.output + ((n * g.out_height + g.first_y + j * g.out_step_y) * g.out_width + g.first_x + i * g.out_step_x) *
                       g.out_channels;
    const long y0 = j * g.step_y, x0 = i * g.step_x;
    const float* image = g.input + n * g.in_height * g.in_width * g.in_channels;
    bool regular = at > 0;
    const float** to = block.row + at;
    if (pointwise) {
      const long y = y0 + g.dy[0], x = x0 + g.dx[0];
      const bool inside = static_cast<unsigned long>(y) < static_cast<unsigned long>(g.in_height) &&
                          static_cast<unsigned long>(x) < static_cast<unsigned long>(g.in_width);
      to[0] = inside ? image + (y * g.in_width + x) * g.in_channels : zeros;
      regular = regular && to[0] - to[-1] == block.stride;
    } else {
      for (long r = 0; r < g.taps_y; ++r) {
        const long y = y0 + g.dy[r];
        const bool row_inside = static_cast<unsigned long>(y) < static_cast<unsigned long>(g.in_height);
        const float* line = image + y * g.in_width * g.in_channels;
        for (long s = 0; s < g.taps_x; ++s, to += block.leading) {
          const long x = x0 + g.dx[s];
          const bool inside = row_inside && static_cast<unsigned long>(x) < static_cast<unsigned long>(g.in_width);
          to[0] = inside ? line + x * g.in_channels : zeros;
          if (at > 0) regular = regular && to[0] - to[-1] == block.stride;
        }
      }
    }
    block.regular[at] = regular;
    if (++i == g.columns) {
      i = 0;
      if (++j == g.rows) {
        j = 0;
        ++n;
      }
    }
  }
}

struct Columns {
  const float* packed;  // panels of this group
  long first, last;     // panels
  long count;           // output channels of this group
  long channel;         // the first of them
};

template <Walk kWalk, int R>
inline void multiply_tile(const RowBlock& block, long first, const TileRows& rows, const Columns& columns, long panel,
                          const Epilogue& given, const float* result) {
  // A copy stays in registers; the results that are stored might alias the original.
  const Epilogue epilogue = given;
  Accumulator<R> acc;
  multiply<kWalk>(acc, rows, block.taps, block.depth, columns.packed + panel * block.taps * block.depth * kPanel);
  const long done = panel * kPanel;
  const long left = columns.count - done;
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
    float* out = block.out[first + i] + columns.channel + done;
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j) {
      const long n = smaller(left - j * kLanes, kLanes);
      if (n > 0) finish(acc.v[i][j], out + j * kLanes, n, columns.channel + done + j * kLanes, epilogue, result);
    }
  }
}

template <Walk kWalk, int R>
BESTOF_INLINE void multiply_rows(long count, const RowBlock& block, long first, const TileRows& rows,
                                 const Columns& columns, long panel, const Epilogue& epilogue, const float* result) {
  if constexpr (R > 0) {
    if (count == R) return multiply_tile<kWalk, R>(block, first, rows, columns, panel, epilogue, result);
    multiply_rows<kWalk, R - 1>(count, block, first, rows, columns, panel, epilogue, result);
  }
}

// The results of `count` rows by the panels of `columns`; `offset` is the first input channel of the group.
inline void multiply_block(const RowBlock& block, long count, long offset, const Columns& columns,
                           const Epilogue& epilogue, const float* result) {
  const TileCut cut = cut_rows(count);
  for (long panel = columns.first; panel < columns.last; ++panel) {
    for (long t = 0; t < cut.tiles; ++t) {
      const long first = cut.begin(t), rows = cut.begin(t + 1) - first;
      bool regular = true;
      for (long i = 1; i < rows; ++i) regular = regular && block.regular[first + i];
      const TileRows tile = {block.row + first, block.leading, offset, block.stride};
      if (regular) {
        multiply_rows<Walk::kRegular, kTileRows>(rows, block, first, tile, columns, panel, epilogue, result);
      } else {
        multiply_rows<Walk::kAnywhere, kTileRows>(rows, block, first, tile, columns, panel, epilogue, result);
      }
    }
  }
}

// Scratch of `convolve_grid`: zeros for taps outside the image, then the pointers (and rows) of every thread.
struct GridScratch {
  long rows, blocks, parts, zeros, pointers, thread, total;
};

inline GridScratch grid_scratch(long pixels, long taps, long depth, long in_channels, long out_channels, bool copy,
                                int threads) {
  GridScratch s;
  // Without a copy, the taps of neighbours read the same pixels.
  s.rows = block_rows(pixels, copy ? taps * depth : in_channels, threads);
  s.blocks = divide_up(pixels, s.rows);
  s.parts = panel_parts(s.blocks, divide_up(out_channels, kPanel), threads);
  s.zeros = round_up(in_channels, 16);
  s.pointers = row_block_floats(s.rows, taps);
  s.thread = s.pointers + (copy ? row_block_floats(s.rows, 1) + round_up(s.rows * taps * depth, 16) : 0);
  s.total = s.zeros + threads * s.thread;
  return s;
}

// Copies the rows of a block, all taps, to where they lie one after the other; gives the block of the copies.
inline RowBlock copy_rows(const RowBlock& block, long count, long offset, float* scratch) {
  RowBlock copied = place_row_block(scratch, block.leading, 1, block.taps * block.depth, block.taps * block.depth);
  float* rows = scratch + row_block_floats(block.leading, 1);
  for (long i = 0; i < count; ++i) {
    float* to = rows + i * copied.depth;
    for (long tap = 0; tap < block.taps; ++tap, to += block.depth) {
      __builtin_memcpy(to, block.row[tap * block.leading + i] + offset, block.depth * sizeof(float));
    }
  }
  for (long i = 0; i < count; ++i) {
    copied.row[i] = rows + i * copied.depth;
    copied.out[i] = block.out[i];
    copied.regular[i] = true;
  }
  return copied;
}

// Runs a whole grid against packed weights. With `copy`, the rows of a block are gathered first (im2row); without, the
// taps are read where they lie (implicit GEMM).
inline void convolve_grid(const Grid& grid, const float* packed, long groups, bool copy, const Epilogue& epilogue,
                          float* scratch, int threads) {
  const long pixels = grid.batch * grid.rows * grid.columns;
  if (pixels == 0) return;
  const long depth = grid.in_channels / groups, outputs = grid.out_channels / groups;
  const long taps = grid.taps_y * grid.taps_x, panels = divide_up(outputs, kPanel);
  const GridScratch s = grid_scratch(pixels, taps, depth, grid.in_channels, outputs, copy, threads);
  for (long i = 0; i < s.zeros; ++i) scratch[i] = 0.0f;
#pragma omp parallel num_threads(threads)
  {
    float* mine = scratch + s.zeros + omp_get_thread_num() * s.thread;
    RowBlock block = place_row_block(mine, s.rows, taps, depth, grid.step_x * grid.in_channels);
    long pointed = -1;
#pragma omp for schedule(dynamic, 1)
    for (long item = 0; item < s.blocks * s.parts; ++item) {
      const long at = item / s.parts, part = item % s.parts;
      const long first = part_begin(pixels, s.blocks, at);
      const long count = part_begin(pixels, s.blocks, at + 1) - first;
      if (pointed != at) point_rows(grid, scratch, first, count, block);
      for (long group = 0; group < groups; ++group) {
        const Columns columns = {packed + group * panels * taps * depth * kPanel, part_begin(panels, s.parts, part),
                                 part_begin(panels, s.parts, part + 1), outputs, group * outputs};
        if (copy) {
          const RowBlock copied = copy_rows(block, count, group * depth, mine + s.pointers);
          multiply_block(copied, count, 0, columns, epilogue, grid.output);
        } else {
          multiply_block(block, count, group * depth, columns, epilogue, grid.output);
        }
      }
      pointed = at;
    }
  }
}

// The offsets of the taps of one axis of a forward pass.
inline void tap_offsets(long taps, long dilation, long pad, long* offsets) {
  for (long t = 0; t < taps; ++t) offsets[t] = t * dilation - pad;
}

// The grid of a forward pass; dy and dx are filled in, kernel_height and kernel_width long.
inline Grid forward_grid(const Problem& p, const float* x, float* y, long* dy, long* dx) {
  tap_offsets(p.kernel_height, p.dilation_y, p.pad_top, dy);
  tap_offsets(p.kernel_width, p.dilation_x, p.pad_left, dx);
  return {p.batch,
          p.out_height,
          p.out_width,
          x,
          p.in_height,
          p.in_width,
          p.in_channels,
          p.stride_y,
          p.stride_x,
          dy,
          dx,
          p.kernel_height,
          p.kernel_width,
          y,
          p.out_height,
          p.out_width,
          p.out_channels,
          0,
          0,
          1,
          1};
}

BESTOF_INLINE long tap_floats(const Problem& p) {
  return round_up(2 * (p.kernel_height + p.kernel_width), 16);
}

// A forward pass by a grid, for the rows of the table that differ only in `copy`.
inline long forward_grid_floats(const Problem& p, bool copy, int threads) {
  return tap_floats(p) + grid_scratch(p.batch * p.out_height * p.out_width, p.kernel_height * p.kernel_width,
                                      p.in_channels / p.groups, p.in_channels, p.out_channels / p.groups, copy, threads)
                             .total;
}

inline void run_forward_grid(const Problem& p, const Call& call, const float* packed, bool copy, float* scratch) {
  long* dy = reinterpret_cast<long*>(scratch);
  const Grid grid = forward_grid(p, call.first, call.result, dy, dy + p.kernel_height);
  convolve_grid(grid, packed, p.groups, copy, call.epilogue, scratch + tap_floats(p), call.threads);
}

inline long weight_floats(const Problem& p) {
  return packed_floats(p.groups, p.out_channels / p.groups, p.in_channels / p.groups, p.kernel_height * p.kernel_width);
}

inline void pack_forward(const Problem& p, const float* w, float* packed, int threads) {
  pack_weights(forward_view(p, w), packed, threads);
}

inline bool always(const Problem&) {
  return true;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
