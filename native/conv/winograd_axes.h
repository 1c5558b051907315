// Winograd with a tile and a kernel of its own on each axis: F(MY, RY) by F(MX, RX), forward. An
// axis with one tap is F(1, 1), so 1x7 and 7x1 are transformed along one axis only.
#pragma once
#include <omp.h>

#include "conv/shares.h"
#include "conv/winograd.h"

namespace bestof {
namespace BESTOF_TARGET {

template <class Y, class X>
struct WinogradAxes {
  static constexpr long kFrequencies = Y::kAlpha * X::kAlpha;

  // An odd number of cache lines, so that the frequencies of a tile fall into different sets of L1.
  static long odd_step(long floats) { return round_up(floats, 32) + 16; }

  // Every thread takes whole blocks: even where there are few tiles each reads U once, and U is
  // small, for the layers of these kernels have few channels (192 in 1x7 of Inception, 48 in 5x5).
  static TilePlan plan(const Problem& p, int threads) {
    TilePlan t;
    t.tiles_y = divide_up(p.out_height, Y::kTile);
    t.tiles_x = divide_up(p.out_width, X::kTile);
    t.tiles = p.batch * t.tiles_y * t.tiles_x;
    t.channels = p.in_channels;
    t.outputs = p.out_channels;
    t.panels = divide_up(p.out_channels, kPanel);
    t.v_stride = round_up(t.channels, kLanes) + 16;
    t.m_stride = t.panels * kPanel + 16;
    const long tile = t.v_stride + t.m_stride;
    long wanted = smaller(larger(level2_bytes() / 12 / (kFrequencies * tile), kTileRows),
                          smaller(promised_tiles(p, kFrequencies, tile, 2 * 48, threads), 96));
    wanted = larger(wanted / kTileRows, 1) * kTileRows;  // whole tiles of the micro-kernel
    t.blocks = round_up(divide_up(larger(t.tiles, 1), wanted),
                        threads);  // an empty batch is asked for its scratch too
    t.block = larger(divide_up(t.tiles, t.blocks), 1);
    t.blocks = divide_up(t.tiles, t.block);
    t.stationary = false;
    t.v_step = odd_step(t.block * t.v_stride);
    t.m_step = odd_step(t.block * t.m_stride);
    return t;
  }

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

  // V of `count` tiles from `first` on.
  static void transform_input(const Problem& p, const TilePlan& t, const float* x, long first,
                              long count, float* v) {
    const long row = p.in_width * p.in_channels, plane = t.tiles_y * t.tiles_x;
    for (long tile = first; tile < first + count; ++tile, v += t.v_stride) {
      const long y0 = tile % plane / t.tiles_x * Y::kTile - p.pad_top;
      const long x0 = tile % t.tiles_x * X::kTile - p.pad_left;
      const float* corner = x + tile / plane * p.in_height * row + y0 * row + x0 * p.in_channels;
      const bool inside =
          y0 >= 0 && x0 >= 0 && y0 + Y::kAlpha <= p.in_height && x0 + X::kAlpha <= p.in_width;
      for (long c = 0; c < t.channels; c += kLanes) {
        const long lanes = smaller(t.channels - c, kLanes);
        if (inside && lanes == kLanes) {
          transform_vector<true>(p, t, corner + c, y0, x0, lanes, v + c);
        } else {
          transform_vector<false>(p, t, corner + c, y0, x0, lanes, v + c);
        }
      }
    }
  }

  // The results of `count` tiles from `first` on.
  static void transform_output(const Problem& p, const TilePlan& t, const float* m, long first,
                               long count, const Epilogue& epilogue, float* y) {
    const long plane = t.tiles_y * t.tiles_x;
    for (long tile = first; tile < first + count; ++tile, m += t.m_stride) {
      const long y0 = tile % plane / t.tiles_x * Y::kTile, x0 = tile % t.tiles_x * X::kTile;
      const long height = smaller(p.out_height - y0, Y::kTile),
                 width = smaller(p.out_width - x0, X::kTile);
      float* corner = y + ((tile / plane * p.out_height + y0) * p.out_width + x0) * p.out_channels;
      for (long k = 0; k < t.outputs; k += kLanes) {
        const long lanes = smaller(t.outputs - k, kLanes);
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
        for (int i = 0; i < height; ++i) {
          Vec o[X::kTile];
          X::output(columns[i], o);
          float* out = corner + i * p.out_width * p.out_channels + k;
#pragma GCC unroll 10
          for (int j = 0; j < X::kTile; ++j) {
            if (j < width) finish(o[j], out + j * p.out_channels, lanes, k, epilogue, y);
          }
        }
      }
    }
  }

  // Packed as [frequency][panel][channel][kPanel].
  static long weight_floats(const Problem& p) {
    return kFrequencies * round_up(p.out_channels, kPanel) * p.in_channels;
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

  static void pack(const Problem& p, const float* w, float* packed, int threads) {
    transform_weights(forward_view(p, w), packed, threads);
  }

  static long scratch(const Problem& p, int threads) {
    const TilePlan t = plan(p, threads);
    return threads * kFrequencies * (t.v_step + t.m_step);
  }

  // Every thread takes blocks of tiles from the input to the output while they lie in its cache.
  static void convolve(const Problem& p, const float* x, const float* u, const Epilogue& epilogue,
                       float* y, float* scratch, int threads) {
    const TilePlan t = plan(p, threads);
    const long u_step = t.panels * t.channels * kPanel;
    Shares shares(t.blocks, threads);
#pragma omp parallel num_threads(threads)
    {
      const long thread = omp_get_thread_num();
      float* v = scratch + thread * kFrequencies * (t.v_step + t.m_step);
      float* m = v + kFrequencies * t.v_step;
      for (long item = shares.take(thread); item >= 0; item = shares.take(thread)) {
        const long first = part_begin(t.tiles, t.blocks, item);
        const long count = part_begin(t.tiles, t.blocks, item + 1) - first;
        transform_input(p, t, x, first, count, v);
        for (long xi = 0; xi < kFrequencies; ++xi) {
          multiply_frequency(t, count, v + xi * t.v_step, u + xi * u_step, 0, t.panels,
                             m + xi * t.m_step);
        }
        transform_output(p, t, m, first, count, epilogue, y);
      }
    }
  }

  static void run_forward(const Problem& p, const Call& call) {
    convolve(p, call.first, call.second, call.epilogue, call.result, call.scratch, call.threads);
  }

  static long backward_input_scratch(const Problem& p, int threads) {
    const Problem q = flipped_problem(p);
    return round_up(weight_floats(q), 16) + scratch(q, threads);
  }

  static void run_backward_input(const Problem& p, const Call& call) {
    const Problem q = flipped_problem(p);
    const Epilogue none = {nullptr, nullptr, Activation::kNone, 0.0f};
    transform_weights(flipped_view(p, call.second), call.scratch, call.threads);
    convolve(q, call.first, call.scratch, none, call.result,
             call.scratch + round_up(weight_floats(q), 16), call.threads);
  }

  // Multiplications and additions of the products; the transforms come on top.
  static double flops(const Problem& p) {
    const double tiles = static_cast<double>(p.batch) * divide_up(p.out_height, Y::kTile) *
                         divide_up(p.out_width, X::kTile);
    return 2.0 * kFrequencies * tiles * p.in_channels * p.out_channels;
  }

  static double backward_input_flops(const Problem& p) { return flops(flipped_problem(p)); }

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

template <class Y, class X>
constexpr Passes winograd_axes() {
  using W = WinogradAxes<Y, X>;
  return {
      .forward = {W::run_forward, W::scratch, W::flops, W::weight_floats, W::pack},
      .backward_input = {W::run_backward_input, W::backward_input_scratch, W::backward_input_flops},
  };
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
