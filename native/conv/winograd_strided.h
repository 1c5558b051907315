// Winograd tiles for 3x3 kernels of stride 2. Even and odd rows and columns form four images of
// half the size. Their kernels have 2x2, 1x2, 2x1 and 1x1 taps and stride 1. Their products are
// summed in the domain of F(M, 2).
#pragma once
#include "conv/winograd_axes.h"

namespace bestof {
namespace BESTOF_TARGET {

// Output o of one axis is even[o] w0 + even[o + 1] w2 + odd[o] w1. The kernel of one tap gets a
// second tap of zero. Its transform is zero at infinity, so the odd rows have no product there.
// That leaves (2M + 1)^2 products for M^2 results and a pair of channels; direct convolution has 9
// M^2.
template <int M>
struct StridedTiles {
  using Axis = Winograd<M, 2>;
  using Results = AxisTiles<Axis, Axis>;
  static constexpr long kAlpha = M + 1, kRead = 2 * M + 1;
  static constexpr long kRows = M, kColumns = M, kStride = 2;
  static constexpr long kReadRows = kRead, kReadColumns = kRead;
  static constexpr long kFrequencies = kAlpha * kAlpha, kPlanes = kFrequencies,
                        kProducts = kRead * kRead;
  static constexpr bool kJoined = false;
  static constexpr Blocking kBlocking = {.level2_parts = 2,
                                         .least = kTileRows,
                                         .most = 96,
                                         .align = 32,
                                         .pad = 16,
                                         .phases = true,
                                         .streams = false,
                                         .fetches = true};
  using Order = NumberedOrder;

  // The number of images that frequency (i, j) is summed over, and the place of each among them.
  // Rows come first, so that even columns come first where the columns are at infinity.
  static constexpr long depth(long xi) {
    return (xi / kAlpha < M ? 2 : 1) * (xi % kAlpha < M ? 2 : 1);
  }
  static constexpr long place(long i, bool odd_row, bool odd_column) {
    return i < M ? 2 * odd_column + odd_row : odd_column;
  }
  // The images of all frequencies before xi.
  static constexpr long depth_before(long xi) {
    return xi / kAlpha * 2 * kRead + (xi / kAlpha < M ? 2 : 1) * 2 * (xi % kAlpha);
  }

  static long v_floats(const Problem& p) { return round_up(4 * p.in_channels, kLanes) + 16; }

  // One vector of channels of a tile whose first pixel is (y0, x0), at `corner`. kWhole: all of it
  // lies inside the image, and all lanes are channels.
  template <bool kWhole>
  static BESTOF_INLINE void transform_vector(const Problem& p, const TilePlan& t,
                                             const float* corner, long y0, long x0, long lanes,
                                             float* v) {
    const long row = p.in_width * p.in_channels;
    // After the rows: for each point the even rows, then the odd ones, except at
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
      float* to = v + i * kAlpha * t.v_step;
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

  static void transform_input(const Problem& p, const TilePlan& t, const Order& order,
                              const float* x, long first, long count, long from, long to,
                              float* block) {
    transform_vectors<StridedTiles>(p, t, order, x, first, count, from, to, block);
  }

  static void transform_output(const Problem& p, const TilePlan& t, const Order& order,
                               const float* m, long first, long count, long from, long to,
                               const Epilogue& epilogue, float* y) {
    Results::transform_output(p, t, order, m, first, count, from, to, epilogue, y);
  }

  // U = G g G^T of each image's kernel, in double. Packed as
  // [frequency][panel][image][channel][kPanel].
  static void transform_weights(const WeightView& view, float* packed, int threads) {
    constexpr long kBlock = 16, kStep = kBlock * kPanel;
    const long panels = divide_up(view.outputs, kPanel);
    transform_panels<9, 3, kBlock>(
        view, threads, [&](const float* taps, long panel, long input, long k) {
          for (int image = 0; image < 4; ++image) {
            const bool odd_row = image % 2, odd_column = image / 2;
            for (int i = 0; i < kAlpha - odd_row; ++i) {
              for (int j = 0; j < kAlpha - odd_column; ++j) {
                const long xi = i * kAlpha + j;
                const long row = panel * depth(xi) + place(i, odd_row, odd_column);
                const long depth = depth_before(xi) * panels + row;
                store_rounded(packed + (depth * view.inputs + input) * kPanel + k,
                              transformed_tap(taps, kStep, odd_row, odd_column, i, j));
              }
            }
          }
        });
  }

  static double products(const Problem& p) {
    return static_cast<double>(p.batch) * kProducts * divide_up(p.out_height, M) *
           divide_up(p.out_width, M);
  }

 private:
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
  static BESTOF_INLINE Wide transformed_tap(const float* taps, long step, bool odd_row,
                                            bool odd_column, int i, int j) {
    Wide sum = Wide{};
    for (int r = 0; r < 2 - odd_row; ++r) {
      for (int s = 0; s < 2 - odd_column; ++s) {
        const long tap = (odd_row ? 1 : 2 * r) * 3 + (odd_column ? 1 : 2 * s);
        const double factor = Axis::kMatrices.g[i][r] * Axis::kMatrices.g[j][s];
        sum += factor * wide(taps + tap * step);
      }
    }
    return sum;
  }
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
