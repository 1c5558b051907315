// 4-D transposition in blocks: tiles of kLanes x kLanes are turned in registers, so that both sides are read and
// written in whole vectors. Axes that stay together are joined first, so NCHW -> NHWC is one turn of (C, H W).
#include "transpose/blocked.h"

#include "simd/kernels.h"
#include "simd/stream.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// Turns the kLanes x kLanes tile in `v`: log2(kLanes) rounds of interleaving halves.
BESTOF_INLINE void turn(Vec (&v)[kLanes]) {
#pragma GCC unroll 4
  for (int round = 1; round < kLanes; round *= 2) {
    Vec next[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes / 2; ++i) {
      VecInt low, high;
#pragma GCC unroll 16
      for (int k = 0; k < kLanes; ++k) {
        low[k] = k / 2 + (k % 2) * kLanes;
        high[k] = kLanes / 2 + k / 2 + (k % 2) * kLanes;
      }
      next[2 * i] = __builtin_shuffle(v[i], v[i + kLanes / 2], low);
      next[2 * i + 1] = __builtin_shuffle(v[i], v[i + kLanes / 2], high);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) v[i] = next[i];
  }
}

// Columns of x that are asked for in advance: no hardware follows as many rows as a block has.
constexpr long kAhead = 64;

// y[c][r] = x[r][c] for rows x columns. With kStream, lines of y go to memory past the caches.
template <bool kStream>
inline void turn_block(const float* x, long x_stride, float* y, long y_stride, long rows, long columns) {
  for (long c = 0; c < columns; c += kLanes) {
    for (long r = 0; r < rows; r += kLanes) {
      if (r + kLanes <= rows && c + kLanes <= columns) {
        Vec tile[kLanes];
        const float* from = x + r * x_stride + c;
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
          tile[i] = load(from + i * x_stride);
          if constexpr (kStream) __builtin_prefetch(from + i * x_stride + kAhead, 0, 2);
        }
        turn(tile);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
          float* to = y + (c + i) * y_stride + r;
          if constexpr (kStream) {
            stream(to, tile[i]);
          } else {
            store(to, tile[i]);
          }
        }
      } else {
        for (long j = c; j < smaller(c + kLanes, columns); ++j) {
          for (long i = r; i < smaller(r + kLanes, rows); ++i) y[j * y_stride + i] = x[i * x_stride + j];
        }
      }
    }
  }
}

// Copies `count` floats past the caches.
inline void stream_copy(const float* x, float* y, long count) {
  long i = 0;
  for (; i + kLanes <= count; i += kLanes) stream(y + i, load(x + i));
  for (; i < count; ++i) y[i] = x[i];
}

}  // namespace

void transpose_blocked(const float* x, const JoinedAxes& axes, float* y, int threads) {
  // The axis that is contiguous in x, and the one that is in y; the others are walked around them.
  int last_read = -1, last_write = -1;
  for (int i = 0; i < axes.count; ++i) {
    if (axes.read[i] == 1) last_read = i;
    if (axes.write[i] == 1) last_write = i;
  }
  const bool copy = last_read == last_write;
  const long rows = copy ? 1 : axes.extent[last_write], columns = axes.extent[last_read];
  long outer = 1, total = 1;
  for (int i = 0; i < axes.count; ++i) total *= axes.extent[i];
  const bool large = beyond_caches(2 * total);
  // Streamed, few rows at a time and far along them: 32 x 256 moves 15.4 GB/s (64 channels @224, batch 8, to NHWC)
  // where 64 x 64 moves 11.9, and 9.7 without streaming; a copy moves 18 to 20. From L3, 256 x 64 is as good as any.
  const long row_step = large ? 32 : 256, column_step = copy ? 16384 : large ? 256 : 64;
  const long row_blocks = divide_up(rows, row_step), column_blocks = divide_up(columns, column_step);
  for (int i = 0; i < axes.count; ++i) {
    if (i != last_read && i != last_write) outer *= axes.extent[i];
  }
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static) nowait
    for (long item = 0; item < outer * row_blocks * column_blocks; ++item) {
      long at = item / (row_blocks * column_blocks);
      const float* from = x;
      float* to = y;
      for (int i = axes.count - 1; i >= 0; --i) {  // axes are in the order of y: the last runs fastest
        if (i == last_read || i == last_write) continue;
        from += at % axes.extent[i] * axes.read[i];
        to += at % axes.extent[i] * axes.write[i];
        at /= axes.extent[i];
      }
      // Row blocks run fastest: they are neighbours in y.
      const long c = item / row_blocks % column_blocks * column_step, r = item % row_blocks * row_step;
      const long width = smaller(columns - c, column_step);
      if (copy) {
        if (large && streamable(to + c)) {
          stream_copy(from + c, to + c, width);
        } else {
          __builtin_memcpy(to + c, from + c, width * sizeof(float));
        }
      } else {
        const long x_stride = axes.read[last_write], y_stride = axes.write[last_read];
        const float* block = from + r * x_stride + c;
        float* turned = to + c * y_stride + r;
        const long height = smaller(rows - r, row_step);
        if (large && streamable(turned) && y_stride % kLanes == 0) {
          turn_block<true>(block, x_stride, turned, y_stride, height, width);
        } else {
          turn_block<false>(block, x_stride, turned, y_stride, height, width);
        }
      }
    }
    end_stream();
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
