// Winograd tiles for kernels of stride 2. Even and odd rows and columns form four images of half
// the size. Their kernels have half the taps along each axis, and stride 1: a 3x3 kernel has 2x2,
// 1x2, 2x1 and 1x1 of them. Their products are summed in the domain of F(M, R).
#pragma once
#include "conv/winograd_axes.h"

namespace bestof {
namespace BESTOF_TARGET {

// Output o of one axis of a 3x3 kernel is even[o] w0 + even[o + 1] w2 + odd[o] w1. The kernel of
// one tap gets a second tap of zero. Its transform is zero at infinity, so the odd rows have no
// product there. That leaves (2M + 1)^2 products for M^2 results and a pair of channels; direct
// convolution has 9 M^2. Of 4x4 kernels, the odd rows have as many taps as the even ones: (2M +
// 2)^2 products for 16 M^2.
template <int M, int Taps>
struct StridedTiles {
  static constexpr int kEven = (Taps + 1) / 2, kOdd = Taps / 2;  // taps of the images of an axis
  using Axis = Winograd<M, kEven>;
  using AxisY = Axis;
  using AxisX = Axis;
  using Results = AxisTiles<Axis, Axis>;
  // Frequencies of the even and odd images along an axis, and the pixels that a tile reads.
  static constexpr long kAlpha = Axis::kAlpha, kBeta = kAlpha - (kEven - kOdd),
                        kRead = kAlpha + kBeta;
  static constexpr long kImages = 2, kFewer = kEven - kOdd;
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
    return (xi / kAlpha < kBeta ? 2 : 1) * (xi % kAlpha < kBeta ? 2 : 1);
  }
  static constexpr long place(long i, bool odd_row, bool odd_column) {
    return i < kBeta ? 2 * odd_column + odd_row : odd_column;
  }
  // The images of all frequencies before xi.
  static constexpr long depth_before(long xi) {
    return xi / kAlpha * 2 * kRead + (xi / kAlpha < kBeta ? 2 : 1) * 2 * (xi % kAlpha);
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
      for (int i = 0; i < kBeta; ++i) columns[kAlpha + i][j] = o[i];
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
      for (int j = 0; j < kBeta; ++j) put<kWhole>(to + j * t.v_step + odd_at, o[j], lanes);
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

  static void transform_gradient(const Problem& p, const TilePlan& t, const Order& order,
                                 const float* grad, long first, long count, float* z) {
    Results::transform_gradient(p, t, order, grad, first, count, z);
  }

  // U = G g G^T of each image's kernel, in double. Packed as
  // [frequency][panel][image][channel][kPanel].
  static void transform_weights(const WeightView& view, float* packed, int threads) {
    constexpr long kBlock = 8, kStep = kBlock * kPanel, kRows = kRead * kRead;
    using Part = SpectrumPart<kRows, kBlock>;
    const long panels = divide_up(view.outputs, kPanel), image_floats = view.inputs * kPanel;
    transform_panels<Taps * Taps, Taps, kRows, kBlock>(
        view, threads,
        [](const float* taps, Part& part, long input, long k) {
          transform_image<false, false>(taps, kStep, part, input, k);
          transform_image<false, true>(taps, kStep, part, input, k);
          transform_image<true, false>(taps, kStep, part, input, k);
          transform_image<true, true>(taps, kStep, part, input, k);
        },
        [=](long row, long panel) {
          long xi = 0;  // the frequency of the row
          while (depth_before(xi + 1) <= row) ++xi;
          const long before = depth_before(xi);
          return packed + (before * panels + panel * depth(xi) + row - before) * image_floats;
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

  // The rows of U of one image for a vector of outputs; the taps of the kernel are `step` floats
  // apart.
  template <bool kOddRow, bool kOddColumn, class Part>
  static BESTOF_INLINE void transform_image(const float* taps, long step, Part& part, long input,
                                            long k) {
    constexpr int kTapsY = kOddRow ? kOdd : kEven, kTapsX = kOddColumn ? kOdd : kEven;
    constexpr int kHeight = kOddRow ? kBeta : kAlpha, kWidth = kOddColumn ? kBeta : kAlpha;
    transform_taps<Axis, Axis, kTapsY, kTapsX, kHeight, kWidth>(
        [=](int r, int s) {
          return load(taps + ((2 * r + kOddRow) * Taps + 2 * s + kOddColumn) * step);
        },
        [&](int i, int j) {
          const long row = depth_before(i * kAlpha + j) + place(i, kOddRow, kOddColumn);
          return part.at(row, input) + k;
        });
  }
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
