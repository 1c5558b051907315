// The transforms of Winograd's F(M x M, 3 x 3): of the image to V, and of the products to results.
// `Element` is that of images and results, float or Bfloat16. Between the transforms all is
// float32.
#pragma once
#include "conv/epilogue.h"
#include "conv/problem.h"
#include "conv/winograd_matrices.h"
#include "conv/winograd_order.h"

namespace bestof {
namespace BESTOF_TARGET {

// Computes BT d, column by column, for one vector of channels of a tile at the rim of the image.
// Pixels outside are zero. Columns that no wanted result reads are left out. `half` is
// [frequency][column].
template <int M, int Rows = M, class Element>
inline void transform_columns(const Problem& p, const Tile& tile, const Element* corner, long y0,
                              long x0, long lanes, Vec (*half)[M + 2]) {
  if constexpr (Rows > 1) {
    if (tile.rows < Rows)
      return transform_columns<M, Rows - 1>(p, tile, corner, y0, x0, lanes, half);
  }
  using Axis = Winograd<Rows, 3, M>;
  const long in_channels = p.in_channels, row = p.in_width * in_channels;
  for (long j = 0; j < tile.columns + 2; ++j) {
    Vec d[Axis::kAlpha], o[Axis::kAlpha];
    const bool column = x0 + j >= 0 && x0 + j < p.in_width;
#pragma GCC unroll 8
    for (int i = 0; i < Axis::kAlpha; ++i) {
      const bool pixel = column && y0 + i >= 0 && y0 + i < p.in_height;
      const Element* from = corner + i * row + j * in_channels;
      d[i] = !pixel ? Vec{} : lanes == kLanes ? load(from) : load_first(from, lanes);
    }
    Axis::input(d, o);
#pragma GCC unroll 8
    for (int i = 0; i < Axis::kAlpha; ++i) half[i][j] = o[i];
  }
}

// Computes (BT d) B, row by row. Prefetches the lines `following` floats on.
template <int M, int Columns = M>
inline void transform_rows(const Tile& tile, const Vec (*half)[M + 2], long v_step, long following,
                           float* v) {
  if constexpr (Columns > 1) {
    if (tile.columns < Columns)
      return transform_rows<M, Columns - 1>(tile, half, v_step, following, v);
  }
  using Axis = Winograd<Columns, 3, M>;
  for (long i = 0; i < tile.rows + 2; ++i) {
    Vec o[Axis::kAlpha];
    Axis::input(half[i], o);
    float* to = v + frequency_at<M>(tile.rows, i) * (M + 2) * v_step;
#pragma GCC unroll 8
    for (int j = 0; j < Axis::kAlpha; ++j) {
      store(to + Axis::frequency(j) * v_step, o[j]);
      __builtin_prefetch(to + Axis::frequency(j) * v_step + following, 1, 3);
    }
  }
}

// Computes V of tiles [first, first + count), channels [from, to), in the block that begins at v.
// Each frequency of a vector goes to another line, alpha^2 in all. Prefetching the lines of the
// next vector gains 17 % here with 128 channels and 35 % with 512. In transform_output it gains 12
// and 22 %.
template <int M, class Element>
inline void transform_square_input(const Problem& p, const TilePlan& t,
                                   const ShortTilesOrder<M>& order, const Element* x, long first,
                                   long count, long from, long to, float* block) {
  constexpr int kAlpha = M + 2;
  // In registers: a stored vector may alias anything, so a field of p or t would be read again
  // after each store.
  const long v_step = t.v_step, v_stride = t.v_stride, in_channels = p.in_channels,
             row = p.in_width * in_channels;
  for (long at = first; at < first + count; ++at) {
    const Tile tile = tile_at(t, at);
    float* v = block + order.place(at, tile) * v_stride;
    const long y0 = tile.y * M - p.pad_top, x0 = tile.x * M - p.pad_left;
    const Element* corner = x + tile.n * p.in_height * row + y0 * row + x0 * in_channels;
    // A crop (a negative pad) leaves pixels behind the last results, so a short tile may have all
    // its own.
    const bool inside = tile.rows == M && tile.columns == M && y0 >= 0 && x0 >= 0 &&
                        y0 + kAlpha <= p.in_height && x0 + kAlpha <= p.in_width;
    for (long c = from; c < to; c += kLanes) {
      const long lanes = smaller(to - c, kLanes);
      const long following = c + kLanes < to ? kLanes : v_stride + from - c;
      Vec half[kAlpha][kAlpha];
      if (!inside || lanes < kLanes) {
        transform_columns<M>(p, tile, corner + c, y0, x0, lanes, half);
        transform_rows<M>(tile, half, v_step, following, v + c);
        continue;
      }
#pragma GCC unroll 8
      for (int j = 0; j < kAlpha; ++j) {
        Vec d[kAlpha], o[kAlpha];
#pragma GCC unroll 8
        for (int i = 0; i < kAlpha; ++i) d[i] = load(corner + i * row + j * in_channels + c);
        Winograd<M>::input(d, o);
#pragma GCC unroll 8
        for (int i = 0; i < kAlpha; ++i) half[i][j] = o[i];
      }
#pragma GCC unroll 8
      for (int i = 0; i < kAlpha; ++i) {
        Vec o[kAlpha];
        Winograd<M>::input(half[i], o);
#pragma GCC unroll 8
        for (int j = 0; j < kAlpha; ++j) {
          float* line = v + (i * kAlpha + j) * v_step + c;
          store(line, o[j]);
          __builtin_prefetch(line + following, 1, 3);
        }
      }
    }
  }
}

// Computes AT m, column by column of the frequencies, for one vector of output channels of a tile.
// `half` is [row][frequency]. Prefetches the lines `following` floats on.
template <int M, int Rows = M>
inline void gather_columns(const Tile& tile, const float* m, long m_step, long following,
                           Vec (*half)[M + 2]) {
  if constexpr (Rows > 1) {
    if (tile.rows < Rows) return gather_columns<M, Rows - 1>(tile, m, m_step, following, half);
  }
  using Axis = Winograd<Rows, 3, M>;
  for (long j = 0; j < tile.columns + 2; ++j) {
    Vec d[Axis::kAlpha], o[Rows];
    const float* from = m + frequency_at<M>(tile.columns, j) * m_step;
#pragma GCC unroll 8
    for (int i = 0; i < Axis::kAlpha; ++i) {
      d[i] = load(from + Axis::frequency(i) * (M + 2) * m_step);
      __builtin_prefetch(from + Axis::frequency(i) * (M + 2) * m_step + following, 0, 3);
    }
    Axis::output(d, o);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) half[i][j] = o[i];
  }
}

// Computes (AT m) A, row by row, and writes it to `corner`.
template <int M, int Columns = M, class Element>
inline void gather_rows(const Problem& p, const Tile& tile, const Vec (*half)[M + 2], long lanes,
                        long k, const Epilogue& epilogue, Element* y, bool streamed,
                        Element* corner) {
  if constexpr (Columns > 1) {
    if (tile.columns < Columns) {
      return gather_rows<M, Columns - 1>(p, tile, half, lanes, k, epilogue, y, streamed, corner);
    }
  }
  const long pitch = pixel_pitch(p, epilogue), out_row = p.out_width * pitch;
  for (long i = 0; i < tile.rows; ++i) {
    Vec o[Columns];
    Winograd<Columns, 3, M>::output(half[i], o);
#pragma GCC unroll 8
    for (int j = 0; j < Columns; ++j) {
      finish(o[j], corner + i * out_row + j * pitch, lanes, k, epilogue, y, streamed);
    }
  }
}

// The same with 2x2 maximum pooling. Tiles begin at even rows and columns.
template <int M, int Columns = M, class Element>
inline void gather_pooled(const Problem& p, const Tile& tile, const Vec (*half)[M + 2], long lanes,
                          long k, const Epilogue& epilogue, Element* y, Element* corner) {
  if constexpr (Columns > 1) {
    if (tile.columns < Columns)
      return gather_pooled<M, Columns - 1>(p, tile, half, lanes, k, epilogue, y, corner);
  }
  const long out_channels = p.out_channels, out_row = p.out_width / 2 * out_channels;
  for (long i = 0; i + 1 < tile.rows; i += 2) {
    Vec upper[Columns], lower[Columns];
    Winograd<Columns, 3, M>::output(half[i], upper);
    Winograd<Columns, 3, M>::output(half[i + 1], lower);
#pragma GCC unroll 8
    for (int j = 0; j + 1 < Columns; j += 2) {
      const Vec v = largest(largest(upper[j], upper[j + 1]), largest(lower[j], lower[j + 1]));
      finish(v, corner + i / 2 * out_row + j / 2 * out_channels, lanes, k, epilogue, y);
    }
  }
}

// Computes the results of tiles [first, first + count), output channels [from, to), from the
// products at m.
template <int M, class Element>
inline void transform_square_output(const Problem& p, const TilePlan& t,
                                    const ShortTilesOrder<M>& order, const float* block, long first,
                                    long count, long from, long to, const Epilogue& given,
                                    Element* y) {
  constexpr int kAlpha = M + 2;
  const Epilogue epilogue = given;
  const long m_step = t.m_step, m_stride = t.m_stride;
  const long pitch = pixel_pitch(p, epilogue), out_row = p.out_width * pitch;
  const long side = epilogue.pooled ? 2 : 1, height = p.out_height / side,
             width = p.out_width / side;
  const bool streamed = t.streamed;
  for (long at = first; at < first + count; ++at) {
    const Tile tile = tile_at(t, at);
    const float* m = block + order.place(at, tile) * m_stride;
    Element* corner =
        y + ((tile.n * height + tile.y * M / side) * width + tile.x * M / side) * pitch;
    const bool whole = tile.rows == M && tile.columns == M;
    for (long k = from; k < to; k += kLanes) {
      const long lanes = smaller(to - k, kLanes);
      const long following = k + kLanes < to ? kLanes : m_stride + from - k;
      Vec half[M][kAlpha];
      if (!whole) {
        gather_columns<M>(tile, m + k, m_step, following, half);
        if (epilogue.pooled) {
          gather_pooled<M>(p, tile, half, lanes, k, epilogue, y, corner + k);
        } else {
          gather_rows<M>(p, tile, half, lanes, k, epilogue, y, streamed, corner + k);
        }
        continue;
      }
#pragma GCC unroll 8
      for (int j = 0; j < kAlpha; ++j) {
        Vec d[kAlpha], o[M];
#pragma GCC unroll 8
        for (int i = 0; i < kAlpha; ++i) {
          const float* line = m + (i * kAlpha + j) * m_step + k;
          d[i] = load(line);
          __builtin_prefetch(line + following, 0, 3);
        }
        Winograd<M>::output(d, o);
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i) half[i][j] = o[i];
      }
      if (epilogue.pooled) {
        gather_pooled<M>(p, tile, half, lanes, k, epilogue, y, corner + k);
        continue;
      }
      for (int i = 0; i < M; ++i) {
        Vec o[M];
        Winograd<M>::output(half[i], o);
        Element* out = corner + i * out_row + k;
#pragma GCC unroll 8
        for (int j = 0; j < M; ++j) finish(o[j], out + j * pitch, lanes, k, epilogue, y, streamed);
      }
    }
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
