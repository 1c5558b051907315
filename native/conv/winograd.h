// Winograd F(M x M, 3 x 3), forward: transform the input, multiply per frequency, transform back.
#pragma once
#include <omp.h>

#include "conv/block_lines.h"
#include "conv/epilogue.h"
#include "conv/problem.h"
#include "conv/shares.h"
#include "conv/weights.h"
#include "conv/winograd_order.h"
#include "conv/winograd_transforms.h"
#include "gemm/micro_kernel.h"
#include "simd/stream.h"

namespace bestof {
namespace BESTOF_TARGET {

// Products of `rows` tiles by one panel, over all channels.
template <Walk kWalk, int R>
inline void multiply_tiles(const TilePlan& t, const float* v, const float* u, const float* next,
                           float* m) {
  Accumulator<R> acc;
  const TileRows<float> rows = {&v, 0, 0, t.v_stride};
  const long m_stride = t.m_stride;
  multiply<kWalk>(acc, rows, 1, t.channels, u, next);
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j) store(m + i * m_stride + j * kLanes, acc.v[i][j]);
  }
}

template <Walk kWalk, int R>
BESTOF_INLINE void multiply_count(long count, const TilePlan& t, const float* v, const float* u,
                                  const float* next, float* m) {
  if constexpr (R > 0) {
    if (count == R) return multiply_tiles<kWalk, R>(t, v, u, next, m);
    multiply_count<kWalk, R - 1>(count, t, v, u, next, m);
  }
}

// One frequency of `count` tiles by panels [first, last); v and m point at the frequency, u at its
// panel 0. U streams from beyond L2: while the last two parts pass a panel, the next panel, which
// lies behind it, is asked for; and some of `lines` before each part.
inline void multiply_frequency(const TilePlan& t, long count, const float* v, const float* u,
                               long first, long last, float* m, BlockLines* lines = nullptr) {
  const TileCut cut = cut_rows(count);
  for (long panel = first; panel < last; ++panel) {
    for (long part = 0; part < cut.tiles; ++part) {
      const long begin = cut.begin(part), rows = cut.begin(part + 1) - begin;
      const float* tiles = v + begin * t.v_stride;
      const float* weights = u + panel * t.channels * kPanel;
      float* products = m + begin * t.m_stride + panel * kPanel;
      const float* following = weights + t.channels * kPanel;
      const long left = cut.tiles - part;
      if (lines) lines->ask();
      if (cut.tiles == 1) {
        multiply_count<Walk::kRegularFetching, kTileRows>(rows, t, tiles, weights, following,
                                                          products);
      } else if (left <= 2) {
        const float* half = following + (2 - left) * t.channels * (kPanel / 2);
        multiply_count<Walk::kRegularFetchingHalf, kTileRows>(rows, t, tiles, weights, half,
                                                              products);
      } else {
        multiply_count<Walk::kRegular, kTileRows>(rows, t, tiles, weights, following, products);
      }
    }
  }
}

// Packed as [frequency][panel][channel][kPanel].
template <int M>
inline long winograd_weight_floats(const Problem& p) {
  return (M + 2) * (M + 2) * round_up(p.out_channels, kPanel) * p.in_channels;
}

// U = G g G^T, in double, kLanes / 2 outputs at a time.
template <int M>
inline void transform_weights(const WeightView& view, float* u, int threads) {
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

template <int M>
inline long winograd_scratch(const Problem& p, int threads) {
  constexpr long kFrequencies = (M + 2) * (M + 2);
  const TilePlan t = plan_tiles<M>(p, threads);
  return (t.stationary ? 1 : threads) * kFrequencies * (t.v_step + t.m_step);
}

// Every thread takes blocks of tiles from the input to the output while they lie in its cache. The
// pixels of the next block and the results of this one come meanwhile from wherever they are, a few
// lines before each call of the micro-kernel: met cold they make the transforms two to three times
// as long (64 channels @224, one thread, ms: 2.2 8.6 2.1 for input, products and
// output; 1.1 9.0 1.1 with all lines asked for).
template <int M>
inline void run_fused(const Problem& p, const TilePlan& t, const float* x, const float* u,
                      const Epilogue& epilogue, float* y, float* scratch, int threads) {
  constexpr long kFrequencies = (M + 2) * (M + 2);
  const long u_step = t.panels * t.channels * kPanel;
  const float* residual = static_cast<const float*>(epilogue.residual);
  Shares shares(t.blocks, threads);
#pragma omp parallel num_threads(threads)
  {
    const long thread = omp_get_thread_num();
    float* v = scratch + thread * kFrequencies * (t.v_step + t.m_step);
    float* m = v + kFrequencies * t.v_step;
    for (long item = shares.take(thread); item >= 0; item = shares.take(thread)) {
      const long next = shares.coming(thread);
      const long first = part_begin(t.tiles, t.blocks, item);
      const long count = part_begin(t.tiles, t.blocks, item + 1) - first;
      const long coming = next >= 0 ? part_begin(t.tiles, t.blocks, next) : 0;
      const long wanted = next >= 0 ? part_begin(t.tiles, t.blocks, next + 1) - coming : 0;
      const TileOrder order(t, first, count);
      transform_input<M>(p, t, order, x, first, count, 0, t.channels, v);
      BlockLines lines;
      if (epilogue.pooled) {
        lines.add<M / 2>(t, y, p.out_height / 2, p.out_width / 2, p.out_channels, first, count, 0,
                         0);
      } else if (!t.streamed) {
        lines.add<M>(t, y, p.out_height, p.out_width, p.out_channels, first, count, 0, 0);
      }
      if (residual)
        lines.add<M>(t, residual, p.out_height, p.out_width, p.out_channels, first, count, 0, 0);
      lines.add<M>(t, x, p.in_height, p.in_width, p.in_channels, coming, wanted, p.pad_top,
                   2 - p.pad_top);
      lines.spread(t.panels * order.parts<M>());
      for (long xi = 0; xi < kFrequencies; ++xi) {
        const TileOrder::Run run = order.run<M>(xi);
        multiply_frequency(t, run.count, v + xi * t.v_step + run.begin * t.v_stride,
                           u + xi * u_step, 0, t.panels, m + xi * t.m_step + run.begin * t.m_stride,
                           &lines);
      }
      transform_output<M>(p, t, order, m, first, count, 0, t.outputs, epilogue, y);
    }
    if (t.streamed) end_stream();
  }
}

// Few tiles: three phases, the products split over frequencies and panels, so that U is read once
// in all. Threads take neighbouring parts, for each asks for the one behind it (one part at a time
// takes 1.09 as long where U comes from memory: 256 channels @14, 512 @7), and in every call the
// same ones.
template <int M>
inline void run_stationary(const Problem& p, const TilePlan& t, const float* x, const float* u,
                           const Epilogue& epilogue, float* y, float* scratch, int threads) {
  constexpr long kFrequencies = (M + 2) * (M + 2);
  const long u_step = t.panels * t.channels * kPanel;
  float* v = scratch;
  float* m = v + kFrequencies * t.v_step;
  const long v_parts = divide_up(t.channels, 4 * kLanes),
             m_parts = divide_up(t.outputs, 4 * kLanes);
  const long wanted = divide_up(16L * threads, kFrequencies);
  const long u_parts = smaller(t.panels, wanted);
  const TileOrder order(t, 0, t.tiles);
  Shares shares(kFrequencies * u_parts, threads,
                [&](long item) { return order.run<M>(item / u_parts).count; });
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (long item = 0; item < t.tiles * v_parts; ++item) {
      const long tile = item / v_parts, from = item % v_parts * 4 * kLanes;
      transform_input<M>(p, t, order, x, tile, 1, from, smaller(from + 4 * kLanes, t.channels), v);
    }
    const long thread = omp_get_thread_num();
    for (long item = shares.take(thread); item >= 0; item = shares.take(thread)) {
      const long xi = item / u_parts, part = item % u_parts;
      const TileOrder::Run run = order.run<M>(xi);
      multiply_frequency(t, run.count, v + xi * t.v_step + run.begin * t.v_stride, u + xi * u_step,
                         part_begin(t.panels, u_parts, part),
                         part_begin(t.panels, u_parts, part + 1),
                         m + xi * t.m_step + run.begin * t.m_stride);
    }
#pragma omp barrier
#pragma omp for schedule(static)
    for (long item = 0; item < t.tiles * m_parts; ++item) {
      const long tile = item / m_parts, from = item % m_parts * 4 * kLanes;
      transform_output<M>(p, t, order, m, tile, 1, from, smaller(from + 4 * kLanes, t.outputs),
                          epilogue, y);
    }
  }
}

template <int M>
inline void winograd_convolve(const Problem& p, const float* x, const float* u,
                              const Epilogue& epilogue, float* y, float* scratch, int threads) {
  TilePlan t = plan_tiles<M>(p, threads);
  t.streamed = t.streamed && streamable(y) && !epilogue.pooled;  // a quarter of the results
  if (t.stationary) {
    run_stationary<M>(p, t, x, u, epilogue, y, scratch, threads);
  } else {
    run_fused<M>(p, t, x, u, epilogue, y, scratch, threads);
  }
}

// The functions of the forward row and, by flipped weights, of the input gradient's.
template <int M>
struct WinogradPass {
  static void pack(const Problem& p, const float* w, float* packed, int threads) {
    transform_weights<M>(forward_view(p, w), packed, threads);
  }
  static void run_forward(const Problem& p, const Call& call) {
    winograd_convolve<M>(p, call.first, call.second, call.epilogue, call.result, call.scratch,
                         call.threads);
  }
  static long backward_input_scratch(const Problem& p, int threads) {
    const Problem q = flipped_problem(p);
    return winograd_weight_floats<M>(q) + winograd_scratch<M>(q, threads);
  }
  static void run_backward_input(const Problem& p, const Call& call) {
    const Problem q = flipped_problem(p);
    const Epilogue none = {nullptr, nullptr, Activation::kNone, 0.0f};
    transform_weights<M>(flipped_view(p, call.second), call.scratch, call.threads);
    winograd_convolve<M>(q, call.first, call.scratch, none, call.result,
                         call.scratch + winograd_weight_floats<M>(q), call.threads);
  }
  // Multiplications and additions of the products; the transforms come on top, and are less than a
  // tenth from 128 channels on.
  static double flops(const Problem& p) {
    return 2.0 * products_along<M>(p.out_height) * products_along<M>(p.out_width) * p.batch *
           p.in_channels * p.out_channels;
  }
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
