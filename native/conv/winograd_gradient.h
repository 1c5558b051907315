// The transform of the gradient of results by square tiles F(M x M, 3 x 3): Z = A dY AT.
#pragma once
#include "conv/winograd_matrices.h"
#include "conv/winograd_order.h"

namespace bestof {
namespace BESTOF_TARGET {

// Computes A dY, column by column of the results, for one vector of output channels of a tile.
// `half` is [frequency][column].
template <int M, int Rows = M>
inline void spread_columns(const Problem& p, const Tile& tile, const float* corner, long lanes,
                           Vec (*half)[M]) {
  if constexpr (Rows > 1) {
    if (tile.rows < Rows) return spread_columns<M, Rows - 1>(p, tile, corner, lanes, half);
  }
  using Axis = Winograd<Rows, 3, M>;
  const long out_channels = p.out_channels, out_row = p.out_width * out_channels;
  for (long j = 0; j < tile.columns; ++j) {
    Vec d[Rows], o[Axis::kAlpha];
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      const float* pixel = corner + i * out_row + j * out_channels;
      d[i] = lanes == kLanes ? load(pixel) : load_first(pixel, lanes);
    }
    Axis::output_adjoint(d, o);
#pragma GCC unroll 8
    for (int i = 0; i < Axis::kAlpha; ++i) half[i][j] = o[i];
  }
}

// Computes (A dY) AT, row by row. Prefetches the lines `following` floats on.
template <int M, int Columns = M>
inline void spread_rows(const Tile& tile, const Vec (*half)[M], long m_step, long following,
                        float* z) {
  if constexpr (Columns > 1) {
    if (tile.columns < Columns)
      return spread_rows<M, Columns - 1>(tile, half, m_step, following, z);
  }
  using Axis = Winograd<Columns, 3, M>;
  for (long i = 0; i < tile.rows + 2; ++i) {
    Vec o[Axis::kAlpha];
    Axis::output_adjoint(half[i], o);
    float* to = z + frequency_at<M>(tile.rows, i) * (M + 2) * m_step;
#pragma GCC unroll 8
    for (int j = 0; j < Axis::kAlpha; ++j) {
      store(to + Axis::frequency(j) * m_step, o[j]);
      __builtin_prefetch(to + Axis::frequency(j) * m_step + following, 1, 3);
    }
  }
}

// Computes Z of tiles [first, first + count) in the block that begins at z. A short tile adds
// to fewer frequencies of dU: w does not depend on the frequencies that its results do not
// need.
template <int M>
inline void transform_square_gradient(const Problem& p, const TilePlan& t,
                                      const ShortTilesOrder<M>& order, const float* grad,
                                      long first, long count, float* block) {
  constexpr int kAlpha = M + 2;
  const long m_step = t.m_step, m_stride = t.m_stride;
  const long out_channels = p.out_channels, out_row = p.out_width * p.out_channels;
  for (long at = first; at < first + count; ++at) {
    const Tile tile = tile_at(t, at);
    float* z = block + order.place(at, tile) * m_stride;
    const float* corner =
        grad + ((tile.n * p.out_height + tile.y * M) * p.out_width + tile.x * M) * p.out_channels;
    const bool whole = tile.rows == M && tile.columns == M;
    for (long k = 0; k < out_channels; k += kLanes) {
      const long lanes = smaller(out_channels - k, kLanes);
      const long following = k + kLanes < out_channels ? kLanes : m_stride - k;
      Vec half[kAlpha][M];
      if (!whole || lanes < kLanes) {
        spread_columns<M>(p, tile, corner + k, lanes, half);
        spread_rows<M>(tile, half, m_step, following, z + k);
        continue;
      }
#pragma GCC unroll 8
      for (int j = 0; j < M; ++j) {
        Vec d[M], o[kAlpha];
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i) d[i] = load(corner + i * out_row + j * out_channels + k);
        Winograd<M>::output_adjoint(d, o);
#pragma GCC unroll 8
        for (int i = 0; i < kAlpha; ++i) half[i][j] = o[i];
      }
#pragma GCC unroll 8
      for (int i = 0; i < kAlpha; ++i) {
        Vec o[kAlpha];
        Winograd<M>::output_adjoint(half[i], o);
#pragma GCC unroll 8
        for (int j = 0; j < kAlpha; ++j) {
          float* line = z + (i * kAlpha + j) * m_step + k;
          store(line, o[j]);
          __builtin_prefetch(line + following, 1, 3);
        }
      }
    }
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
