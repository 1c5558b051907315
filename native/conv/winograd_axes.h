// Winograd tiles F(MY, RY) by F(MX, RX): size and kernel may differ between the axes. An axis with
// one tap is F(1, 1), so 1x7 and 7x1 are transformed along one axis only.
#pragma once
#include "conv/epilogue.h"
#include "conv/weight_transform.h"
#include "conv/winograd.h"
#include "conv/winograd_matrices.h"

namespace bestof {
namespace BESTOF_TARGET {

// Computes V of tiles [first, first + count), channels [from, to). Tiles::transform_vector does one
// vector of channels.
template <class Tiles>
inline void transform_vectors(const Problem& p, const TilePlan& t,
                              const typename Tiles::Order& order, const float* x, long first,
                              long count, long from, long to, float* block) {
  const long row = p.in_width * p.in_channels;
  for (long at = first; at < first + count; ++at) {
    const Tile tile = tile_at(t, at);
    float* v = block + order.place(at, tile) * t.v_stride;
    const long y0 = tile.y * Tiles::kRows * Tiles::kStride - p.pad_top,
               x0 = tile.x * Tiles::kColumns * Tiles::kStride - p.pad_left;
    const float* corner = x + tile.n * p.in_height * row + y0 * row + x0 * p.in_channels;
    const bool inside = y0 >= 0 && x0 >= 0 && y0 + Tiles::kReadRows <= p.in_height &&
                        x0 + Tiles::kReadColumns <= p.in_width;
    for (long c = from; c < to; c += kLanes) {
      const long lanes = smaller(to - c, kLanes);
      if (inside && lanes == kLanes) {
        Tiles::template transform_vector<true>(p, t, corner + c, y0, x0, lanes, v + c);
      } else {
        Tiles::template transform_vector<false>(p, t, corner + c, y0, x0, lanes, v + c);
      }
    }
  }
}

template <class Y, class X>
struct AxisTiles : PlainTiles {
  using AxisY = Y;
  using AxisX = X;
  static constexpr long kRows = Y::kTile, kColumns = X::kTile, kStride = 1;
  static constexpr long kReadRows = Y::kAlpha, kReadColumns = X::kAlpha;
  static constexpr long kFrequencies = Y::kAlpha * X::kAlpha, kPlanes = kFrequencies,
                        kProducts = kFrequencies;
  // Always in blocks, even for few tiles: each thread then reads U once, and U is small because the
  // layers of these kernels have few channels (192 in 1x7 of Inception, 48 in 5x5).
  static constexpr Blocking kBlocking = {.level2_parts = 3,
                                         .least = kTileRows,
                                         .most = 96,
                                         .align = 32,
                                         .pad = 16,
                                         .phases = false,
                                         .streams = false,
                                         .fetches = false};
  using Order = NumberedOrder;

  // One vector of channels of a tile whose first pixel is (y0, x0), at `corner`. kWhole: all of it
  // lies inside the image, and all lanes are channels.
  template <bool kWhole>
  static BESTOF_INLINE void transform_vector(const Problem& p, const TilePlan& t,
                                             const float* corner, long y0, long x0, long lanes,
                                             float* v) {
    const long row = p.in_width * p.in_channels;
    Vec columns[Y::kAlpha][X::kAlpha];
#pragma GCC unroll 10
    for (int j = 0; j < X::kAlpha; ++j) {
      Vec d[Y::kAlpha], o[Y::kAlpha];
      const bool column = x0 + j >= 0 && x0 + j < p.in_width;
#pragma GCC unroll 10
      for (int i = 0; i < Y::kAlpha; ++i) {
        const float* pixel = corner + i * row + j * p.in_channels;
        if constexpr (kWhole) {
          d[i] = load(pixel);
        } else {
          const bool seen = column && y0 + i >= 0 && y0 + i < p.in_height;
          d[i] = !seen ? Vec{} : lanes == kLanes ? load(pixel) : load_first(pixel, lanes);
        }
      }
      Y::input(d, o);
#pragma GCC unroll 10
      for (int i = 0; i < Y::kAlpha; ++i) columns[i][j] = o[i];
    }
#pragma GCC unroll 10
    for (int i = 0; i < Y::kAlpha; ++i) {
      Vec o[X::kAlpha];
      X::input(columns[i], o);
#pragma GCC unroll 10
      for (int j = 0; j < X::kAlpha; ++j) store(v + (i * X::kAlpha + j) * t.v_step, o[j]);
    }
  }

  static void transform_input(const Problem& p, const TilePlan& t, const Order& order,
                              const float* x, long first, long count, long from, long to,
                              float* block) {
    transform_vectors<AxisTiles>(p, t, order, x, first, count, from, to, block);
  }

  static void transform_output(const Problem& p, const TilePlan& t, const Order& order,
                               const float* block, long first, long count, long from, long to,
                               const Epilogue& epilogue, float* y) {
    const long pitch = pixel_pitch(p, epilogue);
    for (long at = first; at < first + count; ++at) {
      const Tile tile = tile_at(t, at);
      const float* m = block + order.place(at, tile) * t.m_stride;
      float* corner =
          y +
          ((tile.n * p.out_height + tile.y * Y::kTile) * p.out_width + tile.x * X::kTile) * pitch;
      for (long k = from; k < to; k += kLanes) {
        const long lanes = smaller(to - k, kLanes);
        Vec columns[Y::kTile][X::kAlpha];
#pragma GCC unroll 10
        for (int j = 0; j < X::kAlpha; ++j) {
          Vec d[Y::kAlpha], o[Y::kTile];
#pragma GCC unroll 10
          for (int i = 0; i < Y::kAlpha; ++i) d[i] = load(m + (i * X::kAlpha + j) * t.m_step + k);
          Y::output(d, o);
#pragma GCC unroll 10
          for (int i = 0; i < Y::kTile; ++i) columns[i][j] = o[i];
        }
        for (int i = 0; i < tile.rows; ++i) {
          Vec o[X::kTile];
          X::output(columns[i], o);
          float* out = corner + i * p.out_width * pitch + k;
#pragma GCC unroll 10
          for (int j = 0; j < X::kTile; ++j) {
            if (j < tile.columns) finish(o[j], out + j * pitch, lanes, k, epilogue, y);
          }
        }
      }
    }
  }

  // Computes Z = A dY AT of tiles [first, first + count). Results outside of the image are zeros in
  // Z, so every tile has all frequencies.
  static void transform_gradient(const Problem& p, const TilePlan& t, const Order& order,
                                 const float* grad, long first, long count, float* block) {
    const long out_row = p.out_width * p.out_channels;
    for (long at = first; at < first + count; ++at) {
      const Tile tile = tile_at(t, at);
      float* z = block + order.place(at, tile) * t.m_stride;
      const float* corner =
          grad + ((tile.n * p.out_height + tile.y * Y::kTile) * p.out_width + tile.x * X::kTile) *
                     p.out_channels;
      for (long k = 0; k < p.out_channels; k += kLanes) {
        const long lanes = smaller(p.out_channels - k, kLanes);
        Vec half[Y::kAlpha][X::kTile];
#pragma GCC unroll 8
        for (int j = 0; j < X::kTile; ++j) {
          Vec d[Y::kTile], o[Y::kAlpha];
#pragma GCC unroll 8
          for (int i = 0; i < Y::kTile; ++i) {
            const float* pixel = corner + i * out_row + j * p.out_channels + k;
            d[i] = i >= tile.rows || j >= tile.columns ? Vec{}
                   : lanes == kLanes                   ? load(pixel)
                                                       : load_first(pixel, lanes);
          }
          Y::output_adjoint(d, o);
#pragma GCC unroll 10
          for (int i = 0; i < Y::kAlpha; ++i) half[i][j] = o[i];
        }
#pragma GCC unroll 10
        for (int i = 0; i < Y::kAlpha; ++i) {
          Vec o[X::kAlpha];
          X::output_adjoint(half[i], o);
#pragma GCC unroll 10
          for (int j = 0; j < X::kAlpha; ++j) store(z + (i * X::kAlpha + j) * t.m_step + k, o[j]);
        }
      }
    }
  }

  static void transform_weights(const WeightView& view, float* u, int threads) {
    transform_axes_weights<Y, X>(view, u, threads);
  }

  static double products(const Problem& p) {
    return static_cast<double>(p.batch) * kProducts * divide_up(p.out_height, Y::kTile) *
           divide_up(p.out_width, X::kTile);
  }
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
