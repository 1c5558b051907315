// Winograd for 3x3 kernels of stride 2, forward: even and odd rows and columns of the image are
// four images of a half the size, with kernels of 2x2, 1x2, 2x1 and 1x1 taps and stride 1, whose
// products are summed in the domain of F(M, 2).
#pragma once
#include <omp.h>

#include "conv/shares.h"
#include "conv/winograd_axes.h"

namespace bestof {
namespace BESTOF_TARGET {

// Output o of one axis is even[o] w0 + even[o + 1] w2 + odd[o] w1. A kernel of one tap is one of
// two whose second is zero; at the point infinity its transform is zero too, so there the odd rows
// have no product. That leaves (2M + 1)^2 products a tile of M^2 results and pair of channels,
// where direct convolution has 9 M^2.
template <int M>
struct WinogradStrided {
  using Axis = Winograd<M, 2>;
  using Results = WinogradAxes<Axis, Axis>;
  static constexpr long kAlpha = M + 1, kFrequencies = kAlpha * kAlpha, kRead = 2 * M + 1;

  // How many of the four images frequency (i, j) is summed over, and at which place among them one
  // comes: by rows first, so that where the columns are at infinity the even ones come first.
  static constexpr long images(long xi) {
    return (xi / kAlpha < M ? 2 : 1) * (xi % kAlpha < M ? 2 : 1);
  }
  static constexpr long place(long i, bool odd_row, bool odd_column) {
    return i < M ? 2 * odd_column + odd_row : odd_column;
  }
  // The images of all frequencies before xi.
  static constexpr long images_before(long xi) {
    return xi / kAlpha * 2 * kRead + (xi / kAlpha < M ? 2 : 1) * 2 * (xi % kAlpha);
  }

  static TilePlan plan(const Problem& p, int threads) {
    TilePlan t;
    t.tiles_y = divide_up(p.out_height, M);
    t.tiles_x = divide_up(p.out_width, M);
    t.tiles = p.batch * t.tiles_y * t.tiles_x;
    t.channels = p.in_channels;
    t.outputs = p.out_channels;
    t.panels = divide_up(p.out_channels, kPanel);
    t.v_stride = round_up(4 * t.channels, kLanes) + 16;
    t.m_stride = t.panels * kPanel + 16;
    const long tile = t.v_stride + t.m_stride;
    long wanted = smaller(larger(level2_bytes() / 8 / (kFrequencies * tile), kTileRows), 96);
    t.stationary = t.tiles < wanted * threads;
    t.block = t.tiles;
    t.blocks = 1;
    if (!t.stationary) {
      wanted = smaller(wanted, promised_tiles(p, kFrequencies, tile, 2 * 48, threads));
      wanted = larger(wanted / kTileRows, 1) * kTileRows;
      t.blocks = round_up(divide_up(t.tiles, wanted), threads);
      t.block = divide_up(t.tiles, t.blocks);
      t.blocks = divide_up(t.tiles, t.block);
    }
    t.block = larger(t.block, 1);  // an empty batch is asked for its scratch too
    t.v_step = Results::odd_step(t.block * t.v_stride);
    t.m_step = Results::odd_step(t.block * t.m_stride);
    t.streamed = false;
    return t;
  }

  // One vector of channels, the first of which is c, of a tile whose first pixel is (y0, x0), at
  // `corner`. kWhole: all of it lies inside the image, and all lanes are channels.
  template <bool kWhole>
  static BESTOF_INLINE void transform_vector(const Problem& p, const TilePlan& t,
                                             const float* corner, long y0, long x0, long c,
                                             long lanes, float* v) {
    const long row = p.in_width * p.in_channels;
    // After the rows: those of the even rows for each point, then those of the odd ones, but for
    // infinity.
    Vec columns[kRead][kRead];
#pragma GCC unroll 16
    for (int j = 0; j < kRead; ++j) {
      Vec even[kAlpha], odd[kAlpha] = {};
      const bool column = x0 + j >= 0 && x0 + j < p.in_width;
#pragma GCC unroll 16
      for (int i = 0; i < kRead; ++i) {
        const float* pixel = corner + i * row + j * p.in_channels;
        Vec& d = i % 2 == 0 ? even[i / 2] : odd[i / 2];
        if constexpr (kWhole) {
          d = load(pixel);
        } else {
          const bool seen = column && y0 + i >= 0 && y0 + i < p.in_height;
          d = !seen ? Vec{} : lanes == kLanes ? load(pixel) : load_first(pixel, lanes);
        }
      }
      Vec o[kAlpha];
      Axis::input(even, o);
#pragma GCC unroll 16
      for (int i = 0; i < kAlpha; ++i) columns[i][j] = o[i];
      Axis::input(odd, o);
#pragma GCC unroll 16
      for (int i = 0; i < M; ++i) columns[kAlpha + i][j] = o[i];
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRead; ++r) {
      const bool odd_row = r >= kAlpha;
      const long i = odd_row ? r - kAlpha : r;
      Vec even[kAlpha], odd[kAlpha] = {}, o[kAlpha];
#pragma GCC unroll 16
      for (int j = 0; j < kRead; ++j) (j % 2 == 0 ? even[j / 2] : odd[j / 2]) = columns[r][j];
      float* to = v + i * kAlpha * t.v_step + c;
      const long even_at = place(i, odd_row, false) * t.channels,
                 odd_at = place(i, odd_row, true) * t.channels;
      Axis::input(even, o);
#pragma GCC unroll 16
      for (int j = 0; j < kAlpha; ++j) put<kWhole>(to + j * t.v_step + even_at, o[j], lanes);
      Axis::input(odd, o);
#pragma GCC unroll 16
      for (int j = 0; j < M; ++j) put<kWhole>(to + j * t.v_step + odd_at, o[j], lanes);
    }
  }

  // V of `count` tiles from `first` on.
  static void transform_input(const Problem& p, const TilePlan& t, const float* x, long first,
                              long count, float* v) {
    const long row = p.in_width * p.in_channels, plane = t.tiles_y * t.tiles_x;
    for (long tile = first; tile < first + count; ++tile, v += t.v_stride) {
      const long y0 = tile % plane / t.tiles_x * 2 * M - p.pad_top;
      const long x0 = tile % t.tiles_x * 2 * M - p.pad_left;
      const float* corner = x + tile / plane * p.in_height * row + y0 * row + x0 * p.in_channels;
      const bool inside =
          y0 >= 0 && x0 >= 0 && y0 + kRead <= p.in_height && x0 + kRead <= p.in_width;
      for (long c = 0; c < t.channels; c += kLanes) {
        const long lanes = smaller(t.channels - c, kLanes);
        if (inside && lanes == kLanes) {
          transform_vector<true>(p, t, corner + c, y0, x0, c, lanes, v);
        } else {
          transform_vector<false>(p, t, corner + c, y0, x0, c, lanes, v);
        }
      }
    }
  }

  // Packed as [frequency][panel][image][channel][kPanel].
  static long weight_floats(const Problem& p) {
    return kRead * kRead * round_up(p.out_channels, kPanel) * p.in_channels;
  }

  // U = G g G^T of each image's kernel, in double.
  static void pack(const Problem& p, const float* w, float* packed, int threads) {
    const WeightView view = forward_view(p, w);
    constexpr long kBlock = 8;  // channels: 9 * 8 * kPanel floats of gathered weights stay in L1
    const long panels = divide_up(view.outputs, kPanel), parts = divide_up(view.inputs, kBlock);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long item = 0; item < panels * parts; ++item) {
      const long panel = item / parts, begin = item % parts * kBlock,
                 count = smaller(view.inputs - begin, kBlock);
      float gathered[9][kBlock * kPanel];
      WeightView part = view;
      part.inputs = count;
      for (int tap = 0; tap < 9; ++tap) {
        const float* from = view.data + begin * view.input_stride + tap / 3 * view.y_stride;
        pack_panel(part, from + tap % 3 * view.x_stride, panel * kPanel, gathered[tap]);
      }
      for (long c = 0; c < count; ++c) {
        for (long k = 0; k < kPanel; k += kLanes) {
          const float* taps = gathered[0] + c * kPanel + k;
          for (int image = 0; image < 4; ++image) {
            const bool odd_row = image % 2, odd_column = image / 2;
            for (int i = 0; i < kAlpha - odd_row; ++i) {
              for (int j = 0; j < kAlpha - odd_column; ++j) {
                const long xi = i * kAlpha + j;
                const long row = panel * images(xi) + place(i, odd_row, odd_column);
                const long depth = images_before(xi) * panels + row;
                store(packed + (depth * view.inputs + begin + c) * kPanel + k,
                      transformed_tap(taps, kBlock * kPanel, odd_row, odd_column, i, j));
              }
            }
          }
        }
      }
    }
  }

  static long scratch(const Problem& p, int threads) {
    const TilePlan t = plan(p, threads);
    return (t.stationary ? 1 : threads) * kFrequencies * (t.v_step + t.m_step);
  }

  static void multiply_at(const TilePlan& t, long xi, long count, const float* v, const float* u,
                          long first, long last, float* m, BlockLines* lines = nullptr) {
    TilePlan here = t;
    here.channels = images(xi) * t.channels;
    multiply_frequency(here, count, v + xi * t.v_step,
                       u + images_before(xi) * t.panels * t.channels * kPanel, first, last,
                       m + xi * t.m_step, lines);
  }

  // Every thread takes blocks of tiles from the input to the output while they lie in its cache;
  // the pixels of the next block, and where results go, come meanwhile, as for kernels of stride 1.
  static void run_fused(const Problem& p, const TilePlan& t, const Call& call) {
    const float* residual = call.epilogue.residual;
    Shares shares(t.blocks, call.threads);
#pragma omp parallel num_threads(call.threads)
    {
      const long thread = omp_get_thread_num();
      float* v = call.scratch + thread * kFrequencies * (t.v_step + t.m_step);
      float* m = v + kFrequencies * t.v_step;
      for (long item = shares.take(thread); item >= 0; item = shares.take(thread)) {
        const long next = shares.coming(thread);
        const long first = part_begin(t.tiles, t.blocks, item);
        const long count = part_begin(t.tiles, t.blocks, item + 1) - first;
        const long coming = next >= 0 ? part_begin(t.tiles, t.blocks, next) : 0;
        const long wanted = next >= 0 ? part_begin(t.tiles, t.blocks, next + 1) - coming : 0;
        transform_input(p, t, call.first, first, count, v);
        BlockLines lines;
        lines.add<M>(t, call.result, p.out_height, p.out_width, p.out_channels, first, count, 0, 0);
        if (residual)
          lines.add<M>(t, residual, p.out_height, p.out_width, p.out_channels, first, count, 0, 0);
        lines.add<2 * M>(t, call.first, p.in_height, p.in_width, p.in_channels, coming, wanted,
                         p.pad_top, 1 - p.pad_top);
        lines.spread(kFrequencies * t.panels * cut_rows(count).tiles);
        for (long xi = 0; xi < kFrequencies; ++xi)
          multiply_at(t, xi, count, v, call.second, 0, t.panels, m, &lines);
        Results::transform_output(p, t, m, first, count, call.epilogue, call.result);
      }
    }
  }

  // Few tiles: three phases, the products split over frequencies and panels, so that U is read once
  // in all.
  static void run_stationary(const Problem& p, const TilePlan& t, const Call& call) {
    float* v = call.scratch;
    float* m = v + kFrequencies * t.v_step;
    const long parts = smaller(t.panels, divide_up(16L * call.threads, kFrequencies));
    Shares shares(kFrequencies * parts, call.threads);
#pragma omp parallel num_threads(call.threads)
    {
#pragma omp for schedule(static)
      for (long tile = 0; tile < t.tiles; ++tile)
        transform_input(p, t, call.first, tile, 1, v + tile * t.v_stride);
      const long thread = omp_get_thread_num();
      for (long item = shares.take(thread); item >= 0; item = shares.take(thread)) {
        const long part = item % parts;
        multiply_at(t, item / parts, t.tiles, v, call.second, part_begin(t.panels, parts, part),
                    part_begin(t.panels, parts, part + 1), m);
      }
#pragma omp barrier
#pragma omp for schedule(static)
      for (long tile = 0; tile < t.tiles; ++tile) {
        Results::transform_output(p, t, m + tile * t.m_stride, tile, 1, call.epilogue, call.result);
      }
    }
  }

  static void run_forward(const Problem& p, const Call& call) {
    const TilePlan t = plan(p, call.threads);
    if (t.stationary) {
      run_stationary(p, t, call);
    } else {
      run_fused(p, t, call);
    }
  }

  // Multiplications and additions of the products; the transforms come on top.
  static double flops(const Problem& p) {
    const double tiles =
        static_cast<double>(p.batch) * divide_up(p.out_height, M) * divide_up(p.out_width, M);
    return 2.0 * kRead * kRead * tiles * p.in_channels * p.out_channels;
  }

 private:
  typedef double Wide __attribute__((vector_size(2 * BESTOF_VECTOR_BYTES), aligned(4)));

  template <bool kWhole>
  static BESTOF_INLINE void put(float* to, Vec v, long lanes) {
    if (kWhole || lanes == kLanes) {
      store(to, v);
    } else {
      store_first(to, v, lanes);  // behind it lies another image's first channel
    }
  }

  // An element of G g G^T; the taps of the 3x3 kernel are `step` floats apart. An image of odd rows
  // has the middle one.
  static BESTOF_INLINE Vec transformed_tap(const float* taps, long step, bool odd_row,
                                           bool odd_column, int i, int j) {
    Wide sum = Wide{};
    for (int r = 0; r < 2 - odd_row; ++r) {
      for (int s = 0; s < 2 - odd_column; ++s) {
        const long tap = (odd_row ? 1 : 2 * r) * 3 + (odd_column ? 1 : 2 * s);
        const double factor = Axis::kMatrices.g[i][r] * Axis::kMatrices.g[j][s];
        sum += factor * __builtin_convertvector(load(taps + tap * step), Wide);
      }
    }
    return __builtin_convertvector(sum, Vec);
  }
};

template <int M>
constexpr Passes winograd_strided() {
  using W = WinogradStrided<M>;
  return {.forward = {W::run_forward, W::scratch, W::flops, W::weight_floats, W::pack}};
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
