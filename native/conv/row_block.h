// The rows of A, if a convolution is a GEMM: the input pixels of a block of output pixels, found
// through pointers or copied.
#pragma once
#include "conv/problem.h"
#include "gemm/micro_kernel.h"
#include "simd/bfloat16.h"
#include "simd/isa.h"

namespace bestof {
namespace BESTOF_TARGET {

// A grid of output pixels and the input pixel that each of its taps reads. Grid point (j, i) of an
// image writes output pixel (first_y + j * out_step_y, first_x + i * out_step_x), and tap (r, s)
// reads input pixel (j * step_y + dy[r], i * step_x + dx[s]), which is zero outside the image.
// Output pixels lie out_pitch elements apart.
struct Grid {
  long batch, rows, columns;
  long in_height, in_width, in_channels, step_y, step_x;
  const long* dy;
  const long* dx;
  long taps_y, taps_x;
  long out_height, out_width, out_channels, out_pitch, first_y, first_x, out_step_y, out_step_x;
};

// Returns whether rows that are so many elements apart collide in L1, where lines of one set lie 4
// KiB apart. The 14 rows of a tile then evict each other (1024 channels: 86 of 109 GFLOP/s). Their
// copies lie an odd number of lines apart.
template <class In>
BESTOF_INLINE bool rows_collide(long stride) {
  return stride * static_cast<long>(sizeof(In)) % 4096 == 0;
}

template <class In>
BESTOF_INLINE long copied_stride(long depth) {
  constexpr long kLine = 64 / sizeof(In);
  return (divide_up(depth, kLine) | 1) * kLine;
}

// The rows of A, and where their results go, of up to a block of grid points.
template <class In, class Out>
struct RowBlock {
  const In** row;  // [taps][leading]
  Out** out;       // [leading]
  bool* regular;   // [leading]: this row is `stride` past the one before it, under every tap
  long leading, taps, depth, stride;
};

// Steps in depth are pairs where the element is bfloat16, the last of them half empty.
template <class In>
BESTOF_INLINE long packed_depth(long depth) {
  return sizeof(In) == sizeof(float) ? depth : round_up(depth, 2);
}

// Floats that `count` elements take.
template <class In>
BESTOF_INLINE long floats_of(long count) {
  return divide_up(count * static_cast<long>(sizeof(In)), sizeof(float));
}

// Bytes of the pointers of a block, in floats and whole cache lines.
BESTOF_INLINE long row_block_floats(long rows, long taps) {
  return round_up((rows * (taps + 1) * static_cast<long>(sizeof(void*)) +
                   rows * static_cast<long>(sizeof(bool))) /
                          4 +
                      1,
                  16);
}

template <class In, class Out>
BESTOF_INLINE RowBlock<In, Out> place_row_block(float* scratch, long rows, long taps, long depth,
                                                long stride) {
  RowBlock<In, Out> block;
  block.row = reinterpret_cast<const In**>(scratch);
  block.out = reinterpret_cast<Out**>(scratch) + rows * taps;
  block.regular = reinterpret_cast<bool*>(block.out + rows);
  block.leading = rows;
  block.taps = taps;
  block.depth = depth;
  block.stride = stride;
  return block;
}

// Points the block at grid points [first, first + count), numbered across images, rows and columns.
// `zeros` has in_channels zeros, for taps outside the image.
template <class In, class Out>
inline void point_rows(const Grid& g, const In* input, Out* output, const In* zeros, long first,
                       long count, RowBlock<In, Out>& block) {
  const long plane = g.rows * g.columns;
  long n = first / plane, j = first % plane / g.columns, i = first % g.columns;
  const bool pointwise = g.taps_y == 1 && g.taps_x == 1;
  for (long at = 0; at < count; ++at) {
    block.out[at] = output + ((n * g.out_height + g.first_y + j * g.out_step_y) * g.out_width +
                              g.first_x + i * g.out_step_x) *
                                 g.out_pitch;
    const long y0 = j * g.step_y, x0 = i * g.step_x;
    const In* image = input + n * g.in_height * g.in_width * g.in_channels;
    bool regular = at > 0;
    const In** to = block.row + at;
    if (pointwise) {
      const long y = y0 + g.dy[0], x = x0 + g.dx[0];
      const bool inside = static_cast<unsigned long>(y) < static_cast<unsigned long>(g.in_height) &&
                          static_cast<unsigned long>(x) < static_cast<unsigned long>(g.in_width);
      to[0] = inside ? image + (y * g.in_width + x) * g.in_channels : zeros;
      regular = regular && to[0] - to[-1] == block.stride;
    } else {
      for (long r = 0; r < g.taps_y; ++r) {
        const long y = y0 + g.dy[r];
        const bool row_inside =
            static_cast<unsigned long>(y) < static_cast<unsigned long>(g.in_height);
        const In* line = image + y * g.in_width * g.in_channels;
        for (long s = 0; s < g.taps_x; ++s, to += block.leading) {
          const long x = x0 + g.dx[s];
          const bool inside =
              row_inside && static_cast<unsigned long>(x) < static_cast<unsigned long>(g.in_width);
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

BESTOF_INLINE void round_or_copy(const float* from, float* to, long count) {
  __builtin_memcpy(to, from, count * sizeof(float));
}

// Widens; the name is that of the other conversions of rows.
BESTOF_INLINE void round_or_copy(const Bfloat16* from, float* to, long count) {
  long i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  if (i < count) store_first(to + i, load_first(from + i, count - i), count - i);
}

// Copies the rows of a block, all taps one after the other. Returns the block of the
// copies.
template <class In, class From, class Out>
inline RowBlock<In, Out> copy_rows(const RowBlock<From, Out>& block, long count, long offset,
                                   float* scratch) {
  const long step = packed_depth<In>(block.depth), depth = block.taps * step;
  const long stride = copied_stride<In>(depth);
  RowBlock<In, Out> copied = place_row_block<In, Out>(scratch, block.leading, 1, depth, stride);
  In* rows = reinterpret_cast<In*>(scratch + row_block_floats(block.leading, 1));
  for (long i = 0; i < count; ++i) {
    In* to = rows + i * stride;
    for (long tap = 0; tap < block.taps; ++tap, to += step) {
      round_or_copy(block.row[tap * block.leading + i] + offset, to, block.depth);
      for (long k = block.depth; k < step; ++k) to[k] = In{};
    }
  }
  for (long i = 0; i < count; ++i) {
    copied.row[i] = rows + i * stride;
    copied.out[i] = block.out[i];
    copied.regular[i] = true;
  }
  return copied;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
