// Winograd tiles with a size and a kernel of their own on each axis: F(MY, RY) by F(MX, RX). An
// axis with one tap is F(1, 1), so 1x7 and 7x1 are transformed along one axis only.
#pragma once
#include "conv/epilogue.h"
#include "conv/winograd.h"
#include "conv/winograd_matrices.h"

namespace bestof {
namespace BESTOF_TARGET {

template <class Y, class X>
struct AxisTiles {
  static constexpr long kRows = Y::kTile, kColumns = X::kTile, kReadRows = Y::kAlpha, kStride = 1;
  static constexpr long kFrequencies = Y::kAlpha * X::kAlpha, kPlanes = kFrequencies,
                        kProducts = kFrequencies;
  static constexpr bool kJoined = false;
  // Blocks always: even where there are few tiles each thread reads U once, and U is small, for the
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

  static constexpr long depth(long) { return 1; }
  static constexpr long depth_before(long xi) { return xi; }
  static long v_floats(const Problem& p) { return round_up(p.in_channels, kLanes) + 16; }

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
    const long row = p.in_width * p.in_channels;
    for (long at = first; at < first + count; ++at) {
      const Tile tile = tile_at(t, at);
      float* v = block + order.place(at, tile) * t.v_stride;
      const long y0 = tile.y * Y::kTile - p.pad_top, x0 = tile.x * X::kTile - p.pad_left;
      const float* corner = x + tile.n * p.in_height * row + y0 * row + x0 * p.in_channels;
      const bool inside =
          y0 >= 0 && x0 >= 0 && y0 + Y::kAlpha <= p.in_height && x0 + X::kAlpha <= p.in_width;
      for (long c = from; c < to; c += kLanes) {
        const long lanes = smaller(to - c, kLanes);
        if (inside && lanes == kLanes) {
          transform_vector<true>(p, t, corner + c, y0, x0, lanes, v + c);
        } else {
          transform_vector<false>(p, t, corner + c, y0, x0, lanes, v + c);
        }
      }
    }
  }

  static void transform_output(const Problem& p, const TilePlan& t, const Order& order,
                               const float* block, long first, long count, long from, long to,
                               const Epilogue& epilogue, float* y) {
    for (long at = first; at < first + count; ++at) {
      const Tile tile = tile_at(t, at);
      const float* m = block + order.place(at, tile) * t.m_stride;
      float* corner =
          y + ((tile.n * p.out_height + tile.y * Y::kTile) * p.out_width + tile.x * X::kTile) *
                  p.out_channels;
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
          float* out = corner + i * p.out_width * p.out_channels + k;
#pragma GCC unroll 10
          for (int j = 0; j < X::kTile; ++j) {
            if (j < tile.columns) finish(o[j], out + j * p.out_channels, lanes, k, epilogue, y);
          }
        }
      }
    }
  }

  // U = GY g GX^T, in double.
  static void transform_weights(const WeightView& view, float* u, int threads) {
    constexpr int kTaps = Y::kTaps * X::kTaps;
    constexpr long kBlock = 8;  // channels: 25 * 8 * kPanel floats of gathered weights stay in L1
    const long panels = divide_up(view.outputs, kPanel), parts = divide_up(view.inputs, kBlock);
    const long step = panels * view.inputs * kPanel;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long item = 0; item < panels * parts; ++item) {
      const long panel = item / parts, begin = item % parts * kBlock,
                 count = smaller(view.inputs - begin, kBlock);
      float gathered[kTaps][kBlock * kPanel];
      WeightView part = view;
      part.inputs = count;
      for (int tap = 0; tap < kTaps; ++tap) {
        const float* from = view.data + begin * view.input_stride + tap / X::kTaps * view.y_stride;
        pack_panel(part, from + tap % X::kTaps * view.x_stride, panel * kPanel, gathered[tap]);
      }
      for (long c = 0; c < count; ++c) {
        for (long k = 0; k < kPanel; k += kLanes) {
          Wide half[Y::kAlpha][X::kTaps];
          for (int s = 0; s < X::kTaps; ++s) {
            Wide g[Y::kTaps];
            for (int r = 0; r < Y::kTaps; ++r) {
              g[r] =
                  __builtin_convertvector(load(gathered[r * X::kTaps + s] + c * kPanel + k), Wide);
            }
            for (int i = 0; i < Y::kAlpha; ++i) half[i][s] = dot(Y::kMatrices.g[i], g, Y::kTaps);
          }
          float* to = u + (panel * view.inputs + begin + c) * kPanel + k;
          for (int i = 0; i < Y::kAlpha; ++i) {
            for (int j = 0; j < X::kAlpha; ++j) {
              const Wide sum = dot(X::kMatrices.g[j], half[i], X::kTaps);
              store(to + (i * X::kAlpha + j) * step, __builtin_convertvector(sum, Vec));
            }
          }
        }
      }
    }
  }

  static double products(const Problem& p) {
    return static_cast<double>(p.batch) * kProducts * divide_up(p.out_height, Y::kTile) *
           divide_up(p.out_width, X::kTile);
  }

 private:
  // Two registers of doubles. A type argument would lose its alignment, so nothing below is a
  // template over it.
  typedef double Wide __attribute__((vector_size(2 * BESTOF_VECTOR_BYTES), aligned(4)));

  static BESTOF_INLINE Wide dot(const double* coefficients, const Wide* in, int count) {
    Wide sum = coefficients[0] * in[0];
    for (int k = 1; k < count; ++k) sum += coefficients[k] * in[k];
    return sum;
  }
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
