// Winograd along columns for 7x7 kernels of stride 2, forward: the first layer of ResNets. With its
// three channels, Winograd along rows too would gain nothing: its transforms would use three lanes
// of a vector.
#include "conv/algorithms.h"
#include "conv/epilogue.h"
#include "conv/winograd.h"
#include "conv/winograd_matrices.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// Output row o is the sum of even[o + r] w[2r] and odd[o + r] w[2r + 1] over even and odd rows of
// the image: kernels of four and three rows. The odd kernel gets a fourth row of zeros, so its
// transform is zero at infinity. Three output rows then need 6 + 5 products of whole rows; direct
// convolution needs 21. In a product, each row of the matrix is what the kernel sees in a row of
// the image: 7 pixels that lie together.
using Axis = Winograd<3, 4>;
constexpr long kAlpha = Axis::kAlpha, kRead = 2 * kAlpha - 1, kTaps = 7, kStep = 2;

// Frequency i sums the products of even and odd rows. The last one, infinity, has even rows
// only.
constexpr long images(long i) {
  return i < kAlpha - 1 ? 2 : 1;
}

// The pixels of a row that the kernel sees, pads included, and the part inside the image.
struct SeenPixels {
  long width, begin, end;
};

SeenPixels seen_pixels(const Problem& p) {
  const long width = (p.out_width - 1) * kStep + kTaps;
  const long begin = smaller(larger(p.pad_left, 0), width);
  return {width, begin, larger(smaller(width, p.in_width + p.pad_left), begin)};
}

// Computes R pixels of `rows` output rows for one panel: the products of all frequencies, which
// stay in L1, and the results.
template <int R>
void multiply_pixels(const Problem& p, const TilePlan& t, const float* v, const float* u, long rows,
                     long k, const Epilogue& given, const float* result, float* out) {
  const Epilogue epilogue = given;
  const long depth = kTaps * p.in_channels;
  const long out_row = p.out_width * p.out_channels, left = smaller(p.out_channels - k, kPanel);
  for (long r = 0; r < rows; ++r) {  // met cold, results hold up the stores
    for (long i = 0; i < R; ++i) {
      for (long j = 0; j < left; j += 16)
        __builtin_prefetch(out + r * out_row + i * p.out_channels + j, 1, 3);
    }
  }
  Accumulator<R> products[kAlpha];
  for (long i = 0; i < kAlpha; ++i) {
    const float* pixels[2] = {v + i * t.v_step, v + (kAlpha + i) * t.v_step};
    const TileRows<float> tile = {pixels, 1, 0, kStep * p.in_channels};
    Accumulator<R> acc;
    multiply<Walk::kRegular>(acc, tile, images(i), depth, u, nullptr);
    products[i] = acc;
    u += images(i) * depth * kPanel;
  }
  for (long i = 0; i < R; ++i) {
    for (long j = 0; j < kPanelVectors; ++j) {
      const long lanes = smaller(left - j * kLanes, kLanes);
      if (lanes <= 0) break;
      Vec d[kAlpha], o[Axis::kTile];
#pragma GCC unroll 8
      for (long f = 0; f < kAlpha; ++f) d[f] = products[f].v[i][j];
      Axis::output(d, o);
#pragma GCC unroll 8
      for (long r = 0; r < Axis::kTile; ++r) {
        float* to = out + r * out_row + i * p.out_channels + j * kLanes;
        if (r < rows) finish(o[r], to, lanes, k + j * kLanes, epilogue, result);
      }
    }
  }
}

template <int R>
BESTOF_INLINE void multiply_count(long count, const Problem& p, const TilePlan& t, const float* v,
                                  const float* u, long rows, long k, const Epilogue& epilogue,
                                  const float* result, float* out) {
  if constexpr (R > 0) {
    if (count == R) return multiply_pixels<R>(p, t, v, u, rows, k, epilogue, result, out);
    multiply_count<R - 1>(count, p, t, v, u, rows, k, epilogue, result, out);
  }
}

// Tiles of three rows of results, as wide as the image.
struct RowTiles {
  static constexpr long kRows = Axis::kTile, kColumns = 0, kReadRows = kRead, kStride = kStep;
  static constexpr long kFrequencies = kAlpha, kPlanes = kRead, kProducts = kRead * kTaps;
  static constexpr bool kJoined = true;
  static constexpr Blocking kBlocking = {.level2_parts = 1,
                                         .least = 1,
                                         .most = 1,
                                         .align = 16,
                                         .pad = 0,
                                         .phases = false,
                                         .streams = false,
                                         .fetches = false};
  using Order = NumberedOrder;

  static long v_floats(const Problem& p) {
    return round_up(seen_pixels(p).width * p.in_channels + kLanes, 16);
  }

  // Pixels left and right of the image stay zero.
  static void prepare(const TilePlan& t, float* v) {
    for (long i = 0; i < kPlanes * t.v_step; ++i) v[i] = 0.0f;
  }

  // Packed as [panel][frequency][even, odd][tap along x][channel][kPanel], in double before it is
  // rounded.
  static void transform_weights(const WeightView& view, float* packed, int threads) {
    constexpr long kBlock = 8;  // channels: 7 * 8 * kPanel floats of gathered weights stay in L1
    const long panels = divide_up(view.outputs, kPanel), depth = kTaps * view.inputs;
    const long parts = divide_up(view.inputs, kBlock);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long item = 0; item < panels * kTaps * parts; ++item) {
      const long panel = item / (kTaps * parts), tap = item / parts % kTaps,
                 begin = item % parts * kBlock;
      float gathered[kTaps][kBlock * kPanel];
      WeightView part = view;
      part.inputs = smaller(view.inputs - begin, kBlock);
      const float* from = view.data + begin * view.input_stride + tap * view.x_stride;
      for (long r = 0; r < kTaps; ++r)
        pack_panel(part, from + r * view.y_stride, panel * kPanel, gathered[r]);
      float* to = packed + (panel * kRead * kTaps + tap) * view.inputs * kPanel + begin * kPanel;
      for (long i = 0; i < kAlpha; ++i) {
        for (long image = 0; image < images(i); ++image, to += depth * kPanel) {
          for (long at = 0; at < part.inputs * kPanel; ++at) {
            double sum = 0.0;
            for (long r = image; r < kTaps; r += 2)
              sum += Axis::kMatrices.g[i][r / 2] * gathered[r][at];
            to[at] = static_cast<float>(sum);
          }
        }
      }
    }
  }

  // Computes V of one tile: the frequencies of even rows, then those of odd ones. Pixels above and
  // below the image are zero. Rows that no result of the tile reads are zero too: a NaN there would
  // reach all results of the tile.
  static void transform_input(const Problem& p, const TilePlan& t, const Order&, const float* x,
                              long first, long, long, long, float* v) {
    const Tile tile = tile_at(t, first);
    const SeenPixels seen = seen_pixels(p);
    const float* image = x + tile.n * p.in_height * p.in_width * p.in_channels;
    const long y = tile.y * kRows * kStep - p.pad_top, rows = tile.rows;
    const long bottom = smaller(p.in_height, y + (rows - 1) * kStep + kTaps);
    const long count = (seen.end - seen.begin) * p.in_channels, line = p.in_width * p.in_channels,
               step = t.v_step;
    const float* from = image + y * line + (seen.begin - p.pad_left) * p.in_channels;
    float* to = v + seen.begin * p.in_channels;
    for (long at = 0; at < count; at += kLanes) {
      const long lanes = smaller(count - at, kLanes);
      Vec even[kAlpha], odd[kAlpha] = {}, o[kAlpha];
#pragma GCC unroll 16
      for (long i = 0; i < kRead; ++i) {
        const bool inside = y + i >= 0 && y + i < bottom;
        const float* pixels = from + i * line + at;
        (i % 2 == 0 ? even : odd)[i / 2] = !inside           ? Vec{}
                                           : lanes == kLanes ? load(pixels)
                                                             : load_first(pixels, lanes);
      }
      Axis::input(even, o);
#pragma GCC unroll 8
      for (long i = 0; i < kAlpha; ++i) store(to + i * step + at, o[i]);
      Axis::input(odd, o);
#pragma GCC unroll 8
      for (long i = 0; i < kAlpha - 1; ++i) store(to + (kAlpha + i) * step + at, o[i]);
    }
  }

  static void multiply(const Problem& p, const TilePlan& t, const Tile& tile, const float* v,
                       const Call& call) {
    const TileCut cut = cut_rows(p.out_width);
    const long depth = kTaps * p.in_channels, y = tile.y * kRows;
    for (long panel = 0; panel < t.panels; ++panel) {
      const float* u = floats(call.second) + panel * kRead * depth * kPanel;
      for (long part = 0; part < cut.tiles; ++part) {
        const long x = cut.begin(part);
        float* out = floats(call.result) +
                     ((tile.n * p.out_height + y) * p.out_width + x) * p.out_channels +
                     panel * kPanel;
        multiply_count<kTileRows>(cut.begin(part + 1) - x, p, t, v + x * kStep * p.in_channels, u,
                                  tile.rows, panel * kPanel, call.epilogue, floats(call.result),
                                  out);
      }
    }
  }

  static double products(const Problem& p) {
    return static_cast<double>(p.batch) * kProducts * divide_up(p.out_height, kRows) * p.out_width;
  }
};

}  // namespace

const Passes passes::winograd3_7x7_s2 = {.forward = WinogradPass<RowTiles>::forward()};

}  // namespace BESTOF_TARGET
}  // namespace bestof
