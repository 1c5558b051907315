// Square tiles of Winograd's F(M x M, 3 x 3), which leave out the products that short tiles spare.
#pragma once
#include "conv/winograd.h"
#include "conv/winograd_transforms.h"

namespace bestof {
namespace BESTOF_TARGET {

// U = G g G^T, in double, kLanes / 2 outputs at a time.
template <int M>
inline void transform_square_weights(const WeightView& view, float* u, int threads) {
  constexpr int kAlpha = M + 2;
  constexpr long kBlock = 16;  // channels: 9 * 16 * kPanel floats of gathered weights stay in L1
  typedef double Wide __attribute__((vector_size(2 * BESTOF_VECTOR_BYTES), aligned(4)));
  const long panels = divide_up(view.outputs, kPanel), parts = divide_up(view.inputs, kBlock);
  const long step = panels * view.inputs * kPanel;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long item = 0; item < panels * parts; ++item) {
    const long panel = item / parts, begin = item % parts * kBlock,
               count = smaller(view.inputs - begin, kBlock);
    float gathered[9][kBlock * kPanel];
    WeightView part = view;
    part.inputs = count;
    for (int tap = 0; tap < 9; ++tap) {
      pack_panel(
          part,
          view.data + begin * view.input_stride + tap / 3 * view.y_stride + tap % 3 * view.x_stride,
          panel * kPanel, gathered[tap]);
    }
    for (long c = 0; c < count; ++c) {
      for (long k = 0; k < kPanel; k += kLanes) {
        Wide g[9], half[kAlpha][3];
#pragma GCC unroll 9
        for (int tap = 0; tap < 9; ++tap) {
          g[tap] = __builtin_convertvector(load(gathered[tap] + c * kPanel + k), Wide);
        }
#pragma GCC unroll 8
        for (int i = 0; i < kAlpha; ++i) {
#pragma GCC unroll 3
          for (int j = 0; j < 3; ++j) {
            const double* row = Winograd<M>::kMatrices.g[i];
            half[i][j] = row[0] * g[j] + row[1] * g[3 + j] + row[2] * g[6 + j];
          }
        }
        float* to = u + (panel * view.inputs + begin + c) * kPanel + k;
#pragma GCC unroll 8
        for (int i = 0; i < kAlpha; ++i) {
#pragma GCC unroll 8
          for (int j = 0; j < kAlpha; ++j) {
            const double* row = Winograd<M>::kMatrices.g[j];
            const Wide sum = row[0] * half[i][0] + row[1] * half[i][1] + row[2] * half[i][2];
            store(to + (i * kAlpha + j) * step, __builtin_convertvector(sum, Vec));
          }
        }
      }
    }
  }
}

// Products along one axis of `results`: the last tile has as many as its results need.
template <int M>
inline double products_along(long results) {
  return static_cast<double>(results + 2 * divide_up(results, M));
}

template <int M>
struct SquareTiles {
  static constexpr long kRows = M, kColumns = M, kReadRows = M + 2, kStride = 1;
  static constexpr long kFrequencies = (M + 2) * (M + 2), kPlanes = kFrequencies,
                        kProducts = kFrequencies;
  static constexpr bool kJoined = false;
  static constexpr Blocking kBlocking = {.level2_parts = 3,
                                         .least = 14,
                                         .most = 96,
                                         .align = 1024,
                                         .pad = 80,
                                         .phases = true,
                                         .streams = true,
                                         .fetches = true};
  using Order = ShortTilesOrder<M>;

  static constexpr long depth(long) { return 1; }
  static constexpr long depth_before(long xi) { return xi; }
  static long v_floats(const Problem& p) { return round_up(p.in_channels, kLanes) + 16; }

  static void transform_weights(const WeightView& view, float* u, int threads) {
    transform_square_weights<M>(view, u, threads);
  }
  static void transform_input(const Problem& p, const TilePlan& t, const Order& order,
                              const float* x, long first, long count, long from, long to,
                              float* v) {
    transform_square_input<M>(p, t, order, x, first, count, from, to, v);
  }
  static void transform_output(const Problem& p, const TilePlan& t, const Order& order,
                               const float* m, long first, long count, long from, long to,
                               const Epilogue& epilogue, float* y) {
    transform_square_output<M>(p, t, order, m, first, count, from, to, epilogue, y);
  }
  static double products(const Problem& p) {
    return products_along<M>(p.out_height) * products_along<M>(p.out_width) * p.batch;
  }
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
