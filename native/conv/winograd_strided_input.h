// The input gradient of kernels of stride 2 by Winograd tiles. It is the forward pass of transposed
// convolutions.
//
// Even and odd rows and columns of the image form four images of half the size, which the stride
// interleaves. Each is the convolution of one gradient of y with the taps of its own, which are
// half of the kernel's along each axis. So V is computed once for the four, and their channels lie
// side by side in the products.
#pragma once
#include "conv/winograd_axes.h"

namespace bestof {
namespace BESTOF_TARGET {

// The convolution of the gradient of y that has the channels of the four images as its results.
// `Problem` has the size of one of these images; `height` and `width` are those of x. Row q of the
// images of even and odd rows is row 2 q - above of x and the one below it.
struct InterleavedProblem : Problem {
  long channels, height, width, above, before;  // of x; `before` is `above` of columns
};

inline InterleavedProblem interleaved_problem(const Problem& p, long taps) {
  InterleavedProblem q;
  static_cast<Problem&>(q) = p;
  q.channels = p.in_channels;
  q.height = p.in_height;
  q.width = p.in_width;
  q.above = p.pad_top & 1;
  q.before = p.pad_left & 1;
  q.in_height = p.out_height;
  q.in_width = p.out_width;
  q.in_channels = p.out_channels;
  q.out_height = divide_up(p.in_height + q.above, 2);
  q.out_width = divide_up(p.in_width + q.before, 2);
  q.out_channels = 4 * p.in_channels;
  q.kernel_height = q.kernel_width = taps;
  q.stride_y = q.stride_x = 1;
  // Pads may be negative (a crop), so they are rounded down by an exact division.
  q.pad_top = taps - 1 - (p.pad_top - q.above) / 2;
  q.pad_left = taps - 1 - (p.pad_left - q.before) / 2;
  return q;
}

// Tiles of M x M results of each of the four images, for kernels of an even number of taps.
template <int M, int Taps>
struct InterleavedTiles : PlainTiles {
  static_assert(Taps % 2 == 0, "all images have the same taps");
  static constexpr int kTaps = Taps / 2;  // of an image, along an axis
  using Axis = Winograd<M, kTaps>;
  using Pixels = AxisTiles<Axis, Axis>;
  using Order = NumberedOrder;
  static constexpr int kAlpha = Axis::kAlpha;
  static constexpr long kRows = M, kColumns = M, kReadRows = kAlpha, kStride = 1;
  static constexpr long kFrequencies = kAlpha * kAlpha, kPlanes = kFrequencies,
                        kProducts = kFrequencies;
  static constexpr Blocking kBlocking = {.level2_parts = 2,
                                         .least = kTileRows,
                                         .most = 96,
                                         .align = 32,
                                         .pad = 16,
                                         .phases = true,
                                         .streams = false,
                                         .fetches = false};

  static void transform_input(const Problem& p, const TilePlan& t, const Order& order,
                              const float* x, long first, long count, long from, long to,
                              float* block) {
    Pixels::transform_input(p, t, order, x, first, count, from, to, block);
  }

  // Channels [from, to) are those of the four images, one after the other.
  static void transform_output(const InterleavedProblem& p, const TilePlan& t, const Order& order,
                               const float* block, long first, long count, long from, long to,
                               const Epilogue&, float* x) {
    for (long at = first; at < first + count; ++at) {
      const Tile tile = tile_at(t, at);
      const float* m = block + order.place(at, tile) * t.m_stride;
      float* image = x + tile.n * p.height * p.width * p.channels;
      for (long k = from; k < to;) {
        const long number = k / p.channels, c = k % p.channels;
        const long lanes = smaller(smaller(p.channels - c, to - k), kLanes);
        const long top = 2 * tile.y * M - p.above + number / 2,
                   left = 2 * tile.x * M - p.before + number % 2;
        transform_vector(p, t, m + k, top, left, lanes, image + c);
        k += lanes;
      }
    }
  }

  // U = G g G^T, in double, packed as [frequency][panel][input][kPanel].
  static void transform_weights(const InterleavedProblem& p, const float* w, float* u,
                                int threads) {
    constexpr long kBlock = 8;
    const long inputs = p.in_channels, panels = divide_up(p.out_channels, kPanel),
               parts = divide_up(inputs, kBlock);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long item = 0; item < panels * parts; ++item) {
      const long panel = item / parts, begin = item % parts * kBlock;
      const long count = smaller(inputs - begin, kBlock);
      SpectrumPart<kFrequencies, kBlock> part;
      for (long i = 0; i < count; ++i) transform_panel(p, w, panel, begin + i, part, i);
      for (long xi = 0; xi < kFrequencies; ++xi)
        part.copy(xi, count, u + ((xi * panels + panel) * inputs + begin) * kPanel);
    }
  }

  static double products(const Problem& p) {
    return static_cast<double>(p.batch) * kProducts * divide_up(p.out_height, M) *
           divide_up(p.out_width, M);
  }

 private:
  // The results of one image for a vector of channels; the first is pixel (top, left) of x.
  static BESTOF_INLINE void transform_vector(const InterleavedProblem& p, const TilePlan& t,
                                             const float* m, long top, long left, long lanes,
                                             float* image) {
    Vec columns[M][kAlpha];
#pragma GCC unroll 10
    for (int j = 0; j < kAlpha; ++j) {
      Vec d[kAlpha], o[M];
#pragma GCC unroll 10
      for (int i = 0; i < kAlpha; ++i) d[i] = load(m + (i * kAlpha + j) * t.m_step);
      Axis::output(d, o);
#pragma GCC unroll 10
      for (int i = 0; i < M; ++i) columns[i][j] = o[i];
    }
#pragma GCC unroll 10
    for (int i = 0; i < M; ++i) {
      const long y = top + 2 * i;
      if (y < 0 || y >= p.height) continue;
      Vec o[M];
      Axis::output(columns[i], o);
#pragma GCC unroll 10
      for (int j = 0; j < M; ++j) {
        const long x = left + 2 * j;
        if (x < 0 || x >= p.width) continue;
        float* to = image + (y * p.width + x) * p.channels;
        if (lanes == kLanes) {
          store(to, o[j]);
        } else {
          store_first(to, o[j], lanes);
        }
      }
    }
  }

  // The rows of U of one panel and one input, number `place` of a part. The outputs of a panel may
  // be of several images. What lies behind the last one is zero.
  template <class Part>
  static BESTOF_INLINE void transform_panel(const InterleavedProblem& p, const float* w, long panel,
                                            long input, Part& part, long place) {
    const float* taps = w + input * Taps * Taps * p.channels;
    long number = panel * kPanel / p.channels, c = panel * kPanel % p.channels;
    for (long column = 0; column < kPanel;) {
      if (number == 4) {
        for (long xi = 0; xi < kFrequencies; ++xi) {
          for (long i = column; i < kPanel; ++i) part.at(xi, place)[i] = 0.0f;
        }
        return;
      }
      const long lanes = smaller(smaller(p.channels - c, kPanel - column), kLanes);
      const float* first = taps + (number / 2 * Taps + number % 2) * p.channels + c;
      if (lanes == kLanes) {
        transform_reversed<true>(first, p.channels, lanes, part.at(0, place) + column, Part::kStep);
      } else {
        // Lanes behind the last are overwritten by the next vector, or by the next input.
        transform_reversed<false>(first, p.channels, lanes, part.at(0, place) + column,
                                  Part::kStep);
      }
      column += lanes;
      c += lanes;
      if (c == p.channels) {
        c = 0;
        ++number;
      }
    }
  }

  // The frequencies, `step` floats apart, of the taps of one image in reverse. `first` points at
  // its first tap.
  template <bool kWhole>
  static BESTOF_INLINE void transform_reversed(const float* first, long channels, long lanes,
                                               float* to, long step) {
    transform_taps<Axis, Axis>(
        [=](int r, int s) {
          const float* tap = first + (2 * (kTaps - 1 - r) * Taps + 2 * (kTaps - 1 - s)) * channels;
          return kWhole ? load(tap) : load_first(tap, lanes);
        },
        [=](int i, int j) { return to + (i * kAlpha + j) * step; });
  }
};

// The input gradient of kernels of `Taps` x `Taps` and stride 2.
template <int M, int Taps>
struct InterleavedPass {
  using Tiles = InterleavedTiles<M, Taps>;
  using Inner = WinogradPass<Tiles>;

  static long scratch(const Problem& p, int threads) {
    const InterleavedProblem q = interleaved_problem(p, Tiles::kTaps);
    return round_up(Inner::weight_floats(q), 16) + Inner::scratch(q, threads);
  }
  static void run(const Problem& p, const Call& call) {
    const InterleavedProblem q = interleaved_problem(p, Tiles::kTaps);
    Tiles::transform_weights(q, floats(call.second), call.scratch, call.threads);
    float* scratch = call.scratch + round_up(Inner::weight_floats(q), 16);
    run_tiles<Tiles, float>(q,
                            Call{call.first, call.scratch, call.result, {}, scratch, call.threads});
  }
  static double flops(const Problem& p) {
    return Inner::flops(interleaved_problem(p, Tiles::kTaps));
  }

  static constexpr Pass pass() { return {run, scratch, flops}; }
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
