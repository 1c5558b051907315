// 4-D transposition in blocks. Tiles of kLanes x kLanes are transposed in registers, so that both
// sides are accessed in whole vectors. Axes that stay together are joined first. NCHW -> NHWC is
// then one transposition of (C, H W).
#include "transpose/blocked.h"

#include "simd/kernels.h"
#include "simd/stream.h"
#include "simd/turn.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// The number of floats in a cache line.
constexpr long kLine = 16;

// Prefetches the next block of x, row by row, while this one is transposed. Hardware prefetchers
// cannot follow as many rows as a block has.
struct Ahead {
  const float* row;
  long stride, rows, width, column;

  BESTOF_INLINE void ask(long lines) {
    while (lines > 0 && rows > 0) {
      const long run = smaller(lines, divide_up(width - column, kLine));
      for (long i = 0; i < run; ++i) __builtin_prefetch(row + column + i * kLine, 0, 2);
      lines -= run;
      column += run * kLine;
      if (column < width) continue;
      column = 0;
      row += stride;
      --rows;
    }
  }
};

// Lane l of vector v of y is element (l + v kLanes) % kRows of column (l + v kLanes) / kRows.
template <int kRows, int v, int r = 1>
BESTOF_INLINE Vec woven(const Vec* x, Vec some) {
  if constexpr (r == kRows) {
    return some;
  } else {
    VecInt from = {};
#pragma GCC unroll 16
    for (int l = 0; l < kLanes; ++l) {
      const int at = l + v * static_cast<int>(kLanes), column = at / kRows, row = at % kRows;
      const int other = static_cast<int>(kLanes) + column;
      from[l] = row == r ? other : r == 1 ? column : l;
    }
    return woven<kRows, v, r + 1>(x, __builtin_shuffle(some, x[r], from));
  }
}

template <int kRows, int v = 0>
BESTOF_INLINE void store_woven(const Vec* x, float* y) {
  if constexpr (v < kRows) {
    store(y + v * kLanes, woven<kRows, v>(x, x[0]));
    store_woven<kRows, v + 1>(x, y);
  }
}

// Sets y[c kRows + r] = x[r][c]: an image of few channels to NHWC. 3 channels @224 take a fifth of
// the time of a loop over elements.
template <int kRows>
inline void weave(const float* x, long x_stride, float* y, long columns) {
  long c = 0;
  for (; c + kLanes <= columns; c += kLanes) {
    Vec row[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) row[r] = load(x + r * x_stride + c);
    store_woven<kRows>(row, y + c * kRows);
  }
  for (; c < columns; ++c) {
    for (int r = 0; r < kRows; ++r) y[c * kRows + r] = x[r * x_stride + c];
  }
}

// Sets y[c][r] = x[r][c] for rows x columns. Tiles follow a row of x, or with `down` a row of y.
// With kStream, lines of y bypass the caches.
template <bool kStream>
inline void turn_block(const float* x, long x_stride, float* y, long y_stride, long rows,
                       long columns, bool down, Ahead ahead) {
  if (y_stride == rows && rows == 3) return weave<3>(x, x_stride, y, columns);
  if (y_stride == rows && rows == 4) return weave<4>(x, x_stride, y, columns);
  const long outer = down ? columns : rows, inner = down ? rows : columns;
  for (long a = 0; a < outer; a += kLanes) {
    for (long b = 0; b < inner; b += kLanes) {
      const long c = down ? a : b, r = down ? b : a;
      if constexpr (kStream) ahead.ask(kLanes * kLanes / kLine);
      if (r + kLanes <= rows && c + kLanes <= columns) {
        Vec tile[kLanes];
        const float* from = x + r * x_stride + c;
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) tile[i] = load(from + i * x_stride);
        turn(tile);
        float* to = y + c * y_stride + r;
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
          if constexpr (kStream) {
            stream(to + i * y_stride, tile[i]);
          } else {
            store(to + i * y_stride, tile[i]);
          }
        }
      } else {
        for (long j = c; j < smaller(c + kLanes, columns); ++j) {
          for (long i = r; i < smaller(r + kLanes, rows); ++i)
            y[j * y_stride + i] = x[i * x_stride + j];
        }
      }
    }
  }
}

// Returns the largest power of two that divides `stride`. The larger it is, the fewer sets of a
// cache do rows at this distance use.
BESTOF_INLINE long common_power(long stride) {
  return stride & -stride;
}

// Copies `count` floats, bypassing the caches.
inline void stream_copy(const float* x, float* y, long count) {
  long i = 0;
  for (; i + kLanes <= count; i += kLanes) stream(y + i, load(x + i));
  for (; i < count; ++i) y[i] = x[i];
}

// The part that one thread transposes or copies at a time.
struct Block {
  const float* from;
  float* to;
  long rows, columns;
};

// The order in which the axes are visited: blocks of the axis that is contiguous in x and of the
// one that is contiguous in y, and the other axes around them.
struct BlockWalk {
  const float* x;
  float* y;
  const JoinedAxes& axes;
  int last_read = -1, last_write = -1;
  bool copy = false, large = false, down = false;
  long rows = 1, columns = 1, row_step = 1, column_step = 1, row_blocks = 1, column_blocks = 1;
  long items = 0, x_stride = 1, y_stride = 1;

  // Row blocks vary fastest, because they are neighbours in y.
  BESTOF_INLINE Block block(long item) const {
    const long c = item / row_blocks % column_blocks * column_step,
               r = item % row_blocks * row_step;
    Block block = {x, y, smaller(rows - r, row_step), smaller(columns - c, column_step)};
    long at = item / (row_blocks * column_blocks);
    // Axes are in the order of y: the last one varies fastest.
    for (int i = axes.count - 1; i >= 0; --i) {
      if (i == last_read || i == last_write) continue;
      block.from += at % axes.extent[i] * axes.read[i];
      block.to += at % axes.extent[i] * axes.write[i];
      at /= axes.extent[i];
    }
    block.from += copy ? c : r * x_stride + c;
    block.to += copy ? c : c * y_stride + r;
    return block;
  }
};

BlockWalk plan_walk(const float* x, const JoinedAxes& axes, float* y) {
  BlockWalk walk = {x, y, axes};
  for (int i = 0; i < axes.count; ++i) {
    if (axes.read[i] == 1) walk.last_read = i;
    if (axes.write[i] == 1) walk.last_write = i;
  }
  walk.copy = walk.last_read == walk.last_write;
  walk.rows = walk.copy ? 1 : axes.extent[walk.last_write];
  walk.columns = axes.extent[walk.last_read];
  long outer = 1, total = 1;
  for (int i = 0; i < axes.count; ++i) {
    total *= axes.extent[i];
    if (i != walk.last_read && i != walk.last_write) outer *= axes.extent[i];
  }
  walk.large = beyond_caches(2 * total);
  walk.x_stride = axes.read[walk.last_write];
  walk.y_stride = axes.write[walk.last_read];
  // If results are streamed, go along rows of y, with few rows of x if these are long. To NHWC (64
  // @ 224 and 128 @ 112, batch 8), blocks of 32 x 128 reach 0.93 and 0.92 of a copy, 64 x 256 0.71
  // and 0.76, in a separate program; in the kernel, the first ones reach 0.81 and 0.82. Back, in
  // that program, 128 x 128 reach 0.95 and 0.92, 32 x 256 0.87 and 0.82. From L3, go along the side
  // whose rows share fewer cache sets, so that lines of a set are used up at once: 0.75 of a copy
  // to NHWC and 0.64 back (128 @ 112, batch 1). The other side gives 0.56 and 0.49.
  walk.down = walk.large || common_power(walk.y_stride) >= common_power(walk.x_stride);
  walk.row_step = walk.large ? (walk.columns > walk.rows ? 32 : 128) : walk.down ? 256 : 64;
  walk.column_step = walk.copy ? 16384 : walk.large ? 128 : walk.down ? 64 : 256;
  walk.row_blocks = divide_up(walk.rows, walk.row_step);
  walk.column_blocks = divide_up(walk.columns, walk.column_step);
  walk.items = outer * walk.row_blocks * walk.column_blocks;
  return walk;
}

}  // namespace

void transpose_blocked(const float* x, const JoinedAxes& axes, float* y, int threads) {
  const BlockWalk walk = plan_walk(x, axes, y);
  const long x_stride = walk.x_stride, y_stride = walk.y_stride;
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static) nowait
    for (long item = 0; item < walk.items; ++item) {
      const Block block = walk.block(item);
      const bool streams = walk.large && streamable(block.to);
      if (walk.copy) {
        if (streams) {
          stream_copy(block.from, block.to, block.columns);
        } else {
          __builtin_memcpy(block.to, block.from, block.columns * sizeof(float));
        }
      } else if (streams && y_stride % kLanes == 0) {
        const Block next = walk.block(smaller(item + 1, walk.items - 1));
        const Ahead ahead = {next.from, x_stride, next.rows, next.columns, 0};
        turn_block<true>(block.from, x_stride, block.to, y_stride, block.rows, block.columns,
                         walk.down, ahead);
      } else {
        turn_block<false>(block.from, x_stride, block.to, y_stride, block.rows, block.columns,
                          walk.down, {});
      }
    }
    end_stream();
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
