// A block of an image that is spread for tile registers (conv/spread_axis.h): how it is cut, how
// its pixels are copied, and where the results of its positions go. A pixel is copied once, by
// whatever the algorithm stores: as bfloat16, or as parts of it.
#pragma once
#include "conv/copied_channels.h"
#include "conv/shares.h"
#include "conv/spread_axis.h"
#include "conv/tile_weights.h"

namespace bestof {
namespace BESTOF_TARGET {

// The lines of all images form one column: line j of image n is line n * rows.length + j.
struct Spread {
  SpreadAxis rows, columns;
  TileDepth depth;
  long pixel;   // the distance of positions in elements: an odd number of cache lines
  long inputs;  // of a group, padded
  long lines;   // of results
  TileShares shares;
  long plane;           // positions of a plane of a block
  long offsets, block;  // floats of the offsets of steps, and of a block
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

// copies: elements that are stored for each channel.
inline Spread spread_of(const Problem& p, const TileDepth& depth, int copies, int threads) {
  Spread s;
  s.depth = depth;
  s.rows =
      spread_axis(p.in_height, p.out_height, p.kernel_height, p.stride_y, p.dilation_y, p.pad_top);
  s.columns =
      spread_axis(p.in_width, p.out_width, p.kernel_width, p.stride_x, p.dilation_x, p.pad_left);
  s.inputs = round_up(p.in_channels / p.groups, kTileDepth);
  s.pixel = row_stride(copies * p.groups * s.inputs);
  s.lines = (p.batch - 1) * s.rows.length + s.rows.out;
  const long line = s.rows.planes * s.columns.planes * s.columns.length * s.pixel;
  // In a quarter of L2: 3x3 layers take 0.95 to 0.99 of their time in half of it. If L2 cannot hold
  // the weights, each block reads them from L3 or memory: then in half.
  const long panels = divide_up(p.out_channels / p.groups, kPanel);
  const long weights = 2 * copies * p.groups * panels * panel_elements(depth);
  const long share = weights <= level2_bytes() ? 8 : 4;
  const long fitting = level2_bytes() / share / line - s.rows.reach;
  s.shares =
      share_rows(s.lines, fitting, s.lines * s.columns.length, p.out_channels / p.groups, threads);
  s.plane = (s.shares.rows + s.rows.reach) * s.columns.length + s.columns.reach + kBlockHeight;
  s.offsets = round_up(2 * depth.all_steps(), 16);
  s.block = s.rows.planes * s.columns.planes * s.plane * s.pixel / 2;
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

// Copies one line of one plane. `from` is its row of the input, or null where all is zero.
// copy_pixel(from, to) copies all channels of a pixel.
template <class From, class CopyPixel>
inline void spread_line(const Problem& p, const Spread& s, const From* from, long plane,
                        Bfloat16* to, const CopyPixel& copy_pixel) {
  const long begin = from ? s.columns.begin(plane) : s.columns.length;
  const long end = from ? s.columns.end(plane) : s.columns.length;
  const long step = p.stride_x * p.in_channels;
  clear_channels(to, begin * s.pixel);
  Bfloat16* pixel = to + begin * s.pixel;
  if (from) from += (begin * p.stride_x + s.columns.first(plane)) * p.in_channels;
  for (long q = begin; q < end; ++q, from += step, pixel += s.pixel) copy_pixel(from, pixel);
  clear_channels(pixel, larger(s.columns.length - end, 0) * s.pixel);
}

// Copies lines of what the lines from `first` on of results read: [begin, end) of the block, whose
// last one is `last` - 1.
template <class From, class CopyPixel>
inline void spread_lines(const Problem& p, const Spread& s, const From* x, long first, long begin,
                         long end, long last, Bfloat16* to, const CopyPixel& copy_pixel) {
  for (long py = 0; py < s.rows.planes; ++py) {
    for (long px = 0; px < s.columns.planes; ++px) {
      Bfloat16* line =
          to + ((py * s.columns.planes + px) * s.plane + begin * s.columns.length) * s.pixel;
      for (long j = first + begin; j < first + end; ++j) {
        const long image = j / s.rows.length;
        const long y = j % s.rows.length * p.stride_y + s.rows.first(py);
        const bool inside = image < p.batch && 0 <= y && y < p.in_height;
        const From* row =
            inside ? x + (image * p.in_height + y) * p.in_width * p.in_channels : nullptr;
        spread_line(p, s, row, px, line, copy_pixel);
        line += s.columns.length * s.pixel;
      }
      // The padding behind the last line.
      if (end == last) clear_channels(line, s.columns.shared * s.pixel);
    }
  }
}

// Copies what the lines [first, first + count) of results read.
template <class From, class CopyPixel>
inline void spread_block(const Problem& p, const Spread& s, const From* x, long first, long count,
                         Bfloat16* to, const CopyPixel& copy_pixel) {
  const long lines = count + s.rows.reach;
  spread_lines(p, s, x, first, 0, lines, lines, to, copy_pixel);
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

}  // namespace BESTOF_TARGET
}  // namespace bestof
