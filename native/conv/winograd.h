// Winograd F(M x M, 3 x 3), forward: transform the input, multiply per frequency, transform back.
#pragma once
#include <omp.h>

#include "conv/block_lines.h"
#include "conv/epilogue.h"
#include "conv/problem.h"
#include "conv/shares.h"
#include "conv/weights.h"
#include "conv/winograd_matrices.h"
#include "conv/winograd_order.h"
#include "gemm/micro_kernel.h"
#include "simd/stream.h"

namespace bestof {
namespace BESTOF_TARGET {

// One vector of channels of a tile at the rim of the image, as BT d, column by column: pixels outside are zero, and
// columns behind the results that are wanted are left out. `half` is [frequency][column].
template <int M, int Rows = M>
inline void transform_columns(const Problem& p, const Tile& tile, const float* corner, long y0, long x0, long lanes,
                              Vec (*half)[M + 2]) {
  if constexpr (Rows > 1) {
    if (tile.rows < Rows) return transform_columns<M, Rows - 1>(p, tile, corner, y0, x0, lanes, half);
  }
  using Axis = Winograd<Rows, 3, M>;
  const long in_channels = p.in_channels, row = p.in_width * in_channels;
  for (long j = 0; j < tile.columns + 2; ++j) {
    Vec d[Axis::kAlpha], o[Axis::kAlpha];
    const bool column = x0 + j >= 0 && x0 + j < p.in_width;
#pragma GCC unroll 8
    for (int i = 0; i < Axis::kAlpha; ++i) {
      const bool pixel = column && y0 + i >= 0 && y0 + i < p.in_height;
      const float* from = corner + i * row + j * in_channels;
      d[i] = !pixel ? Vec{} : lanes == kLanes ? load(from) : load_first(from, lanes);
    }
    Axis::input(d, o);
#pragma GCC unroll 8
    for (int i = 0; i < Axis::kAlpha; ++i) half[i][j] = o[i];
  }
}

// (BT d) B of it, row by row; asks for the lines `following` floats on.
template <int M, int Columns = M>
inline void transform_rows(const Tile& tile, const Vec (*half)[M + 2], long v_step, long following, float* v) {
  if constexpr (Columns > 1) {
    if (tile.columns < Columns) return transform_rows<M, Columns - 1>(tile, half, v_step, following, v);
  }
  using Axis = Winograd<Columns, 3, M>;
  for (long i = 0; i < tile.rows + 2; ++i) {
    Vec o[Axis::kAlpha];
    Axis::input(half[i], o);
    float* to = v + frequency_at<M>(tile.rows, i) * (M + 2) * v_step;
#pragma GCC unroll 8
    for (int j = 0; j < Axis::kAlpha; ++j) {
      store(to + Axis::frequency(j) * v_step, o[j]);
      __builtin_prefetch(to + Axis::frequency(j) * v_step + following, 1, 3);
    }
  }
}

// V of tiles [first, first + count), channels [from, to), at their places in the block that begins at v. Each vector
// goes to a line of its own for every frequency, alpha^2 of them far apart: the lines of the next vector are asked for
// meanwhile, which gains 17 % with 128 channels and 35 % with 512 here; 12 and 22 % in transform_output.
template <int M>
inline void transform_input(const Problem& p, const TilePlan& t, const TileOrder& order, const float* x, long first,
                            long count, long from, long to, float* block) {
  constexpr int kAlpha = M + 2;
  // In registers: a vector that is stored may alias anything, so a field of p or t is read again after each.
  const long v_step = t.v_step, v_stride = t.v_stride, in_channels = p.in_channels, row = p.in_width * in_channels;
  for (long at = first; at < first + count; ++at) {
    const Tile tile = tile_at(t, at);
    float* v = block + order.place(tile) * v_stride;
    const long y0 = tile.y * M - p.pad_top, x0 = tile.x * M - p.pad_left;
    const float* corner = x + tile.n * p.in_height * row + y0 * row + x0 * in_channels;
    const bool inside = y0 >= 0 && x0 >= 0 && y0 + kAlpha <= p.in_height && x0 + kAlpha <= p.in_width;
    for (long c = from; c < to; c += kLanes) {
      const long lanes = smaller(to - c, kLanes);
      const long following = c + kLanes < to ? kLanes : v_stride + from - c;
      Vec half[kAlpha][kAlpha];
      if (!inside || lanes < kLanes) {
        transform_columns<M>(p, tile, corner + c, y0, x0, lanes, half);
        transform_rows<M>(tile, half, v_step, following, v + c);
        continue;
      }
#pragma GCC unroll 8
      for (int j = 0; j < kAlpha; ++j) {
        Vec d[kAlpha], o[kAlpha];
#pragma GCC unroll 8
        for (int i = 0; i < kAlpha; ++i) d[i] = load(corner + i * row + j * in_channels + c);
        Winograd<M>::input(d, o);
#pragma GCC unroll 8
        for (int i = 0; i < kAlpha; ++i) half[i][j] = o[i];
      }
#pragma GCC unroll 8
      for (int i = 0; i < kAlpha; ++i) {
        Vec o[kAlpha];
        Winograd<M>::input(half[i], o);
#pragma GCC unroll 8
        for (int j = 0; j < kAlpha; ++j) {
          float* line = v + (i * kAlpha + j) * v_step + c;
          store(line, o[j]);
          __builtin_prefetch(line + following, 1, 3);
        }
      }
    }
  }
}

// Products of `rows` tiles by one panel, over all channels.
template <Walk kWalk, int R>
inline void multiply_tiles(const TilePlan& t, const float* v, const float* u, const float* next, float* m) {
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
BESTOF_INLINE void multiply_count(long count, const TilePlan& t, const float* v, const float* u, const float* next,
                                  float* m) {
  if constexpr (R > 0) {
    if (count == R) return multiply_tiles<kWalk, R>(t, v, u, next, m);
    multiply_count<kWalk, R - 1>(count, t, v, u, next, m);
  }
}

// One frequency of `count` tiles by panels [first, last); v and m point at the frequency, u at its panel 0. U streams
// from beyond L2: while the last two parts pass a panel, the next panel, which lies behind it, is asked for; and some
// of `lines` before each part.
inline void multiply_frequency(const TilePlan& t, long count, const float* v, const float* u, long first, long last,
                               float* m, BlockLines* lines = nullptr) {
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
        multiply_count<Walk::kRegularFetching, kTileRows>(rows, t, tiles, weights, following, products);
      } else if (left <= 2) {
        const float* half = following + (2 - left) * t.channels * (kPanel / 2);
        multiply_count<Walk::kRegularFetchingHalf, kTileRows>(rows, t, tiles, weights, half, products);
      } else {
        multiply_count<Walk::kRegular, kTileRows>(rows, t, tiles, weights, following, products);
      }
    }
  }
}

// One vector of output channels of a tile, as AT m, column by column of its frequencies; `half` is [row][frequency].
// Asks for the lines `following` floats on.
template <int M, int Rows = M>
inline void gather_columns(const Tile& tile, const float* m, long m_step, long following, Vec (*half)[M + 2]) {
  if constexpr (Rows > 1) {
    if (tile.rows < Rows) return gather_columns<M, Rows - 1>(tile, m, m_step, following, half);
  }
  using Axis = Winograd<Rows, 3, M>;
  for (long j = 0; j < tile.columns + 2; ++j) {
    Vec d[Axis::kAlpha], o[Rows];
    const float* from = m + frequency_at<M>(tile.columns, j) * m_step;
#pragma GCC unroll 8
    for (int i = 0; i < Axis::kAlpha; ++i) {
      d[i] = load(from + Axis::frequency(i) * (M + 2) * m_step);
      __builtin_prefetch(from + Axis::frequency(i) * (M + 2) * m_step + following, 0, 3);
    }
    Axis::output(d, o);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) half[i][j] = o[i];
  }
}

// (AT m) A of it, row by row, written to `corner`.
template <int M, int Columns = M>
inline void gather_rows(const Problem& p, const Tile& tile, const Vec (*half)[M + 2], long lanes, long k,
                        const Epilogue& epilogue, float* y, bool streamed, float* corner) {
  if constexpr (Columns > 1) {
    if (tile.columns < Columns) {
      return gather_rows<M, Columns - 1>(p, tile, half, lanes, k, epilogue, y, streamed, corner);
    }
  }
  const long out_channels = p.out_channels, out_row = p.out_width * out_channels;
  for (long i = 0; i < tile.rows; ++i) {
    Vec o[Columns];
    Winograd<Columns, 3, M>::output(half[i], o);
#pragma GCC unroll 8
    for (int j = 0; j < Columns; ++j) {
      finish(o[j], corner + i * out_row + j * out_channels, lanes, k, epilogue, y, streamed);
    }
  }
}

BESTOF_INLINE Vec largest(Vec a, Vec b) {
  return (a > b) | (a != a) ? a : b;  // a NaN wins
}

// The same, of which the largest of each 2x2 are written: tiles begin at even rows and columns.
template <int M, int Columns = M>
inline void gather_pooled(const Problem& p, const Tile& tile, const Vec (*half)[M + 2], long lanes, long k,
                          const Epilogue& epilogue, float* y, float* corner) {
  if constexpr (Columns > 1) {
    if (tile.columns < Columns) return gather_pooled<M, Columns - 1>(p, tile, half, lanes, k, epilogue, y, corner);
  }
  const long out_channels = p.out_channels, out_row = p.out_width / 2 * out_channels;
  for (long i = 0; i + 1 < tile.rows; i += 2) {
    Vec upper[Columns], lower[Columns];
    Winograd<Columns, 3, M>::output(half[i], upper);
    Winograd<Columns, 3, M>::output(half[i + 1], lower);
#pragma GCC unroll 8
    for (int j = 0; j + 1 < Columns; j += 2) {
      const Vec v = largest(largest(upper[j], upper[j + 1]), largest(lower[j], lower[j + 1]));
      finish(v, corner + i / 2 * out_row + j / 2 * out_channels, lanes, k, epilogue, y);
    }
  }
}

// The results of tiles [first, first + count), output channels [from, to), from the block of products at m.
template <int M>
inline void transform_output(const Problem& p, const TilePlan& t, const TileOrder& order, const float* block,
                             long first, long count, long from, long to, const Epilogue& given, float* y) {
  constexpr int kAlpha = M + 2;
  const Epilogue epilogue = given;
  const long m_step = t.m_step, m_stride = t.m_stride;
  const long out_channels = p.out_channels, out_row = p.out_width * p.out_channels;
  const long side = epilogue.pooled ? 2 : 1, height = p.out_height / side, width = p.out_width / side;
  const bool streamed = t.streamed;
  for (long at = first; at < first + count; ++at) {
    const Tile tile = tile_at(t, at);
    const float* m = block + order.place(tile) * m_stride;
    float* corner = y + ((tile.n * height + tile.y * M / side) * width + tile.x * M / side) * out_channels;
    const bool whole = tile.rows == M && tile.columns == M;
    for (long k = from; k < to; k += kLanes) {
      const long lanes = smaller(to - k, kLanes);
      const long following = k + kLanes < to ? kLanes : m_stride + from - k;
      Vec half[M][kAlpha];
      if (!whole) {
        gather_columns<M>(tile, m + k, m_step, following, half);
        if (epilogue.pooled) {
          gather_pooled<M>(p, tile, half, lanes, k, epilogue, y, corner + k);
        } else {
          gather_rows<M>(p, tile, half, lanes, k, epilogue, y, streamed, corner + k);
        }
        continue;
      }
#pragma GCC unroll 8
      for (int j = 0; j < kAlpha; ++j) {
        Vec d[kAlpha], o[M];
#pragma GCC unroll 8
        for (int i = 0; i < kAlpha; ++i) {
          const float* line = m + (i * kAlpha + j) * m_step + k;
          d[i] = load(line);
          __builtin_prefetch(line + following, 0, 3);
        }
        Winograd<M>::output(d, o);
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i) half[i][j] = o[i];
      }
      if (epilogue.pooled) {
        gather_pooled<M>(p, tile, half, lanes, k, epilogue, y, corner + k);
        continue;
      }
      for (int i = 0; i < M; ++i) {
        Vec o[M];
        Winograd<M>::output(half[i], o);
        float* out = corner + i * out_row + k;
#pragma GCC unroll 8
        for (int j = 0; j < M; ++j) finish(o[j], out + j * out_channels, lanes, k, epilogue, y, streamed);
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
    const long panel = item / parts, begin = item % parts * kBlock, count = smaller(view.inputs - begin, kBlock);
    float gathered[9][kBlock * kPanel];
    WeightView part = view;
    part.inputs = count;
    for (int tap = 0; tap < 9; ++tap) {
      pack_panel(part, view.data + begin * view.input_stride + tap / 3 * view.y_stride + tap % 3 * view.x_stride,
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
inline bool winograd_supports(const Problem& p) {
  return p.kernel_height == 3 && p.kernel_width == 3 && p.stride_y == 1 && p.stride_x == 1 && p.dilation_y == 1 &&
         p.dilation_x == 1 && p.groups == 1;
}

template <int M>
inline long winograd_scratch(const Problem& p, int threads) {
  constexpr long kFrequencies = (M + 2) * (M + 2);
  const TilePlan t = plan_tiles<M>(p, threads);
  return (t.stationary ? 1 : threads) * kFrequencies * (t.v_step + t.m_step);
}

// Every thread takes blocks of tiles from the input to the output while they lie in its cache. The pixels of the next
// block and the results of this one come meanwhile from wherever they are, a few lines before each call of the
// micro-kernel: met cold they make the transforms two to three times as long (64 channels @224, one thread, ms: 2.2 8.6
// 2.1 for input, products and output; 1.1 9.0 1.1 with all lines asked for).
template <int M>
inline void run_fused(const Problem& p, const TilePlan& t, const float* x, const float* u, const Epilogue& epilogue,
                      float* y, float* scratch, int threads) {
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
        lines.add<M / 2>(t, y, p.out_height / 2, p.out_width / 2, p.out_channels, first, count, 0, 0);
      } else if (!t.streamed) {
        lines.add<M>(t, y, p.out_height, p.out_width, p.out_channels, first, count, 0, 0);
      }
      if (residual) lines.add<M>(t, residual, p.out_height, p.out_width, p.out_channels, first, count, 0, 0);
      lines.add<M>(t, x, p.in_height, p.in_width, p.in_channels, coming, wanted, p.pad_top, 2 - p.pad_top);
      lines.spread(t.panels * order.parts<M>());
      for (long xi = 0; xi < kFrequencies; ++xi) {
        const TileOrder::Run run = order.run<M>(xi);
        multiply_frequency(t, run.count, v + xi * t.v_step + run.begin * t.v_stride, u + xi * u_step, 0, t.panels,
                           m + xi * t.m_step + run.begin * t.m_stride, &lines);
      }
      transform_output<M>(p, t, order, m, first, count, 0, t.outputs, epilogue, y);
    }
    if (t.streamed) end_stream();
  }
}

// Few tiles: three phases, the products split over frequencies and panels, so that U is read once in all. Threads take
// neighbouring parts, for each asks for the one behind it (one part at a time takes 1.09 as long where U comes from
// memory: 256 channels @14, 512 @7), and in every call the same ones.
template <int M>
inline void run_stationary(const Problem& p, const TilePlan& t, const float* x, const float* u,
                           const Epilogue& epilogue, float* y, float* scratch, int threads) {
  constexpr long kFrequencies = (M + 2) * (M + 2);
  const long u_step = t.panels * t.channels * kPanel;
  float* v = scratch;
  float* m = v + kFrequencies * t.v_step;
  const long v_parts = divide_up(t.channels, 4 * kLanes), m_parts = divide_up(t.outputs, 4 * kLanes);
  const long wanted = divide_up(16L * threads, kFrequencies);
  const long u_parts = smaller(t.panels, wanted);
  const TileOrder order(t, 0, t.tiles);
  Shares shares(kFrequencies * u_parts, threads, [&](long item) { return order.run<M>(item / u_parts).count; });
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
                         part_begin(t.panels, u_parts, part), part_begin(t.panels, u_parts, part + 1),
                         m + xi * t.m_step + run.begin * t.m_stride);
    }
#pragma omp barrier
#pragma omp for schedule(static)
    for (long item = 0; item < t.tiles * m_parts; ++item) {
      const long tile = item / m_parts, from = item % m_parts * 4 * kLanes;
      transform_output<M>(p, t, order, m, tile, 1, from, smaller(from + 4 * kLanes, t.outputs), epilogue, y);
    }
  }
}

template <int M>
inline void winograd_convolve(const Problem& p, const float* x, const float* u, const Epilogue& epilogue, float* y,
                              float* scratch, int threads) {
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
    winograd_convolve<M>(p, call.first, call.second, call.epilogue, call.result, call.scratch, call.threads);
  }
  static long backward_input_scratch(const Problem& p, int threads) {
    const Problem q = flipped_problem(p);
    return winograd_weight_floats<M>(q) + winograd_scratch<M>(q, threads);
  }
  static void run_backward_input(const Problem& p, const Call& call) {
    const Problem q = flipped_problem(p);
    const Epilogue none = {nullptr, nullptr, Activation::kNone, 0.0f};
    transform_weights<M>(flipped_view(p, call.second), call.scratch, call.threads);
    winograd_convolve<M>(q, call.first, call.scratch, none, call.result, call.scratch + winograd_weight_floats<M>(q),
                         call.threads);
  }
  // Multiplications and additions of the products; the transforms come on top, and are less than a tenth from 128
  // channels on.
  static double flops(const Problem& p) {
    return 2.0 * products_along<M>(p.out_height) * products_along<M>(p.out_width) * p.batch * p.in_channels *
           p.out_channels;
  }
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
