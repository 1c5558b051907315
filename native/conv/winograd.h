// Convolution by Winograd's algorithm: transform the pixels, multiply by frequency, transform back.
//
// The loops over blocks, the phases and the input gradient are written here once, over a kind of
// tile. A kind of tile is a class of static members:
//   kRows, kColumns      results of a tile; kColumns = 0: as wide as the image
//   kReadRows, kStride   rows of pixels that a tile reads; the stride of the convolution
//   kFrequencies         at so many frequencies the products of a tile are summed
//   kPlanes              arrays of V; as many as frequencies, unless kJoined
//   kProducts            products of a tile and a pair of channels, over all frequencies
//   kBlocking, Order     see conv/winograd_tiles.h and conv/winograd_order.h
//   depth(xi), depth_before(xi)   rows of V a channel at frequency xi, and at all before it
//   v_floats(p)          floats from tile to tile of V
//   products(p)          products of a whole convolution and a pair of channels
//   transform_weights(view, u, threads)
//   transform_input(p, t, order, x, first, count, from, to, v)               channels [from, to)
//   transform_output(p, t, order, m, first, count, from, to, epilogue, y)    channels [from, to)
// A kind of tile whose pass of the weight gradient is built has, beside that:
//   AxisY, AxisX         the transforms along the axes
//   kImages, kFewer      images along an axis, 1 or 2; how many taps fewer the second one has
//   place(i, odd_row, odd_column)   the place of an image among those of frequency i
//   transform_gradient(p, t, order, gradient, first, count, z)
// Where kJoined is true, it has `prepare(t, v)`, which is called once for each thread, and
// `multiply(p, t, tile, v, call)` in place of `transform_output`, which multiplies and writes the
// results of one tile.
//
// A kind of tile that also takes tensors of bfloat16 has templates over their element for the
// weights, the input and the output. U, V and the products are float32.
#pragma once
#include <omp.h>

#include "conv/algorithm.h"
#include "conv/block_lines.h"
#include "conv/operands.h"
#include "conv/shares.h"
#include "conv/weights.h"
#include "conv/winograd_order.h"
#include "conv/winograd_tiles.h"

namespace bestof {
namespace BESTOF_TARGET {

// Base of the kinds of tile that sum each frequency over the channels of one image.
struct PlainTiles {
  static constexpr bool kJoined = false;
  static constexpr long kImages = 1, kFewer = 0;
  static constexpr long place(long, bool, bool) { return 0; }
  static constexpr long depth(long) { return 1; }
  static constexpr long depth_before(long xi) { return xi; }
  static long v_floats(const Problem& p) { return round_up(p.in_channels, kLanes) + 16; }
};

// Products of `rows` tiles by one panel, over `depth` channels.
template <Walk kWalk, int R>
inline void multiply_tiles(const TilePlan& t, long depth, const float* v, const float* u,
                           const float* next, float* m) {
  Accumulator<R> acc;
  const TileRows<float> rows = {&v, 0, 0, t.v_stride};
  const long m_stride = t.m_stride;
  multiply<kWalk>(acc, rows, 1, depth, u, next);
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j) store(m + i * m_stride + j * kLanes, acc.v[i][j]);
  }
}

template <Walk kWalk, int R>
BESTOF_INLINE void multiply_count(long count, const TilePlan& t, long depth, const float* v,
                                  const float* u, const float* next, float* m) {
  if constexpr (R > 0) {
    if (count == R) return multiply_tiles<kWalk, R>(t, depth, v, u, next, m);
    multiply_count<kWalk, R - 1>(count, t, depth, v, u, next, m);
  }
}

// Multiplies one frequency of `count` tiles by panels [first, last). v and m point at the
// frequency, u at its panel 0, which has `depth` channels. U streams from L3 or memory: while the
// last two parts pass a panel, the next panel is prefetched. Before each part, some of `lines` are
// prefetched.
inline void multiply_frequency(const TilePlan& t, long depth, long count, const float* v,
                               const float* u, long first, long last, float* m,
                               BlockLines* lines = nullptr) {
  const TileCut cut = cut_rows(count);
  for (long panel = first; panel < last; ++panel) {
    for (long part = 0; part < cut.tiles; ++part) {
      const long begin = cut.begin(part), rows = cut.begin(part + 1) - begin;
      const float* tiles = v + begin * t.v_stride;
      const float* weights = u + panel * depth * kPanel;
      float* products = m + begin * t.m_stride + panel * kPanel;
      const float* following = weights + depth * kPanel;
      const long left = cut.tiles - part;
      if (lines) lines->ask();
      if (cut.tiles == 1) {
        multiply_count<Walk::kRegularFetching, kTileRows>(rows, t, depth, tiles, weights, following,
                                                          products);
      } else if (left <= 2) {
        const float* half = following + (2 - left) * depth * (kPanel / 2);
        multiply_count<Walk::kRegularFetchingHalf, kTileRows>(rows, t, depth, tiles, weights, half,
                                                              products);
      } else {
        multiply_count<Walk::kRegular, kTileRows>(rows, t, depth, tiles, weights, following,
                                                  products);
      }
    }
  }
}

template <class Tiles>
inline long scratch_of_team(const TilePlan& t) {
  return Tiles::kPlanes * t.v_step + Tiles::kFrequencies * t.m_step;
}

// Lists the lines that a block writes and those that the `wanted` tiles from `coming` on read.
template <class Tiles, class Element>
inline void list_lines(const Problem& p, const TilePlan& t, const Call& call, long first,
                       long count, long coming, long wanted, BlockLines& lines) {
  const Element* residual = static_cast<const Element*>(call.epilogue.residual);
  const long side = call.epilogue.pooled ? 2 : 1;
  if (!t.streamed) {
    lines.add(t, static_cast<Element*>(call.result), p.out_height / side, p.out_width / side,
              p.out_channels, pixel_pitch(p, call.epilogue), first, count,
              {t.rows / side, t.columns / side, 0, 0});
  }
  if (residual) {
    lines.add(t, residual, p.out_height, p.out_width, p.out_channels, p.out_channels, first, count,
              {t.rows, t.columns, 0, 0});
  }
  const long rows = t.rows * Tiles::kStride, columns = t.columns * Tiles::kStride;
  lines.add(t, static_cast<const Element*>(call.first), p.in_height, p.in_width, p.in_channels,
            p.in_channels, coming, wanted,
            {rows, columns, p.pad_top, Tiles::kReadRows - rows - p.pad_top});
}

// Multiplies the frequencies of a block and writes its results. Meanwhile it prefetches the pixels
// of the `wanted` tiles from `coming` on and the lines of the results, a few before each call of
// the micro-kernel. Without this, the transforms take two to three times as long (64 channels @224,
// one thread, ms of input, products and output: 2.2 8.6 2.1; with all lines prefetched 1.1 9.0
// 1.1).
template <class Tiles, class Element, class P>
inline void finish_block(const P& p, const TilePlan& t, const typename Tiles::Order& order,
                         const Call& call, long first, long count, long coming, long wanted,
                         const float* v, float* m) {
  const float* u = floats(call.second);
  const long u_step = t.panels * t.channels * kPanel;
  BlockLines lines;
  if constexpr (Tiles::kBlocking.fetches) {
    list_lines<Tiles, Element>(p, t, call, first, count, coming, wanted, lines);
    lines.spread(t.panels * order.parts(Tiles::kFrequencies));
  }
  for (long xi = 0; xi < Tiles::kFrequencies; ++xi) {
    const TileRun run = order.run(xi);
    multiply_frequency(
        t, Tiles::depth(xi) * t.channels, run.count, v + xi * t.v_step + run.begin * t.v_stride,
        u + Tiles::depth_before(xi) * u_step, 0, t.panels,
        m + xi * t.m_step + run.begin * t.m_stride, Tiles::kBlocking.fetches ? &lines : nullptr);
  }
  Tiles::transform_output(p, t, order, m, first, count, 0, t.outputs, call.epilogue,
                          static_cast<Element*>(call.result));
}

// Each thread takes blocks of tiles from the input to the output, while they lie in its cache.
template <class Tiles, class Element, class P>
inline void run_blocks(const P& p, const TilePlan& t, const Call& call) {
  const Element* x = static_cast<const Element*>(call.first);
  Shares shares(t.blocks, call.threads);
#pragma omp parallel num_threads(call.threads)
  {
    const long thread = omp_get_thread_num();
    float* v = call.scratch + thread * scratch_of_team<Tiles>(t);
    float* m = v + Tiles::kPlanes * t.v_step;
    if constexpr (Tiles::kJoined) Tiles::prepare(t, v);
    for (long item = shares.take(thread); item >= 0; item = shares.take(thread)) {
      const long next = shares.coming(thread);
      const long first = part_begin(t.tiles, t.blocks, item);
      const long count = part_begin(t.tiles, t.blocks, item + 1) - first;
      const long coming = next >= 0 ? part_begin(t.tiles, t.blocks, next) : 0;
      const long wanted = next >= 0 ? part_begin(t.tiles, t.blocks, next + 1) - coming : 0;
      const typename Tiles::Order order(t, first, count);
      Tiles::transform_input(p, t, order, x, first, count, 0, t.channels, v);
      if constexpr (Tiles::kJoined) {
        Tiles::multiply(p, t, tile_at(t, first), v, call);
      } else {
        finish_block<Tiles, Element>(p, t, order, call, first, count, coming, wanted, v, m);
      }
    }
    if (t.streamed) end_stream();
  }
}

// For few tiles: three phases. The products are split over frequencies and panels, so that U is
// read once in all. Threads take neighbouring parts, because each part prefetches the next one
// (single parts take 1.09 times as long if U comes from memory: 256 channels @14, 512 @7). In every
// call a thread takes the same parts.
template <class Tiles, class Element, class P>
inline void run_phases(const P& p, const TilePlan& t, const Call& call) {
  constexpr long kFrequencies = Tiles::kFrequencies;
  const Element* x = static_cast<const Element*>(call.first);
  const float* u = floats(call.second);
  const long u_step = t.panels * t.channels * kPanel;
  float* v = call.scratch;
  float* m = v + kFrequencies * t.v_step;
  const long v_parts = divide_up(t.channels, 4 * kLanes),
             m_parts = divide_up(t.outputs, 4 * kLanes);
  const long u_parts = smaller(t.panels, divide_up(16L * call.threads, kFrequencies));
  const typename Tiles::Order order(t, 0, t.tiles);
  Shares shares(kFrequencies * u_parts, call.threads, [&](long item) {
    const long xi = item / u_parts;
    return order.run(xi).count * Tiles::depth(xi);
  });
#pragma omp parallel num_threads(call.threads)
  {
#pragma omp for schedule(static)
    for (long item = 0; item < t.tiles * v_parts; ++item) {
      const long tile = item / v_parts, from = item % v_parts * 4 * kLanes;
      Tiles::transform_input(p, t, order, x, tile, 1, from, smaller(from + 4 * kLanes, t.channels),
                             v);
    }
    const long thread = omp_get_thread_num();
    for (long item = shares.take(thread); item >= 0; item = shares.take(thread)) {
      const long xi = item / u_parts, part = item % u_parts;
      const TileRun run = order.run(xi);
      multiply_frequency(
          t, Tiles::depth(xi) * t.channels, run.count, v + xi * t.v_step + run.begin * t.v_stride,
          u + Tiles::depth_before(xi) * u_step, part_begin(t.panels, u_parts, part),
          part_begin(t.panels, u_parts, part + 1), m + xi * t.m_step + run.begin * t.m_stride);
    }
#pragma omp barrier
#pragma omp for schedule(static)
    for (long item = 0; item < t.tiles * m_parts; ++item) {
      const long tile = item / m_parts, from = item % m_parts * 4 * kLanes;
      Tiles::transform_output(p, t, order, m, tile, 1, from, smaller(from + 4 * kLanes, t.outputs),
                              call.epilogue, static_cast<Element*>(call.result));
    }
  }
}

// Computes a convolution with packed weights. P is Problem, or what a kind of tile needs beside it.
// `Element` is that of x and of the results.
template <class Tiles, class Element, class P>
inline void run_tiles(const P& p, const Call& call) {
  TilePlan t = plan_tiles<Tiles>(p, call.threads);
  // A pooled result is a quarter as large. `finish` streams whole vectors of float32 only.
  t.streamed = t.streamed && sizeof(Element) == sizeof(float) && streamable(floats(call.result)) &&
               !call.epilogue.pooled && call.epilogue.pitch % kLanes == 0;
  if constexpr (Tiles::kBlocking.phases) {
    if (t.stationary) return run_phases<Tiles, Element>(p, t, call);
  }
  run_blocks<Tiles, Element>(p, t, call);
}

// The functions of the forward pass and of the input gradient, which uses flipped weights. The
// gradient is one of float32.
template <class Tiles>
struct WinogradPass {
  static long weight_floats(const Problem& p) {
    return Tiles::kProducts * round_up(p.out_channels, kPanel) * p.in_channels;
  }
  static void pack(const Problem& p, const void* w, float* packed, int threads) {
    Tiles::transform_weights(forward_view(p, floats(w)), packed, threads);
  }
  static long scratch(const Problem& p, int threads) {
    const TilePlan t = plan_tiles<Tiles>(p, threads);
    return (t.stationary ? 1 : threads) * scratch_of_team<Tiles>(t);
  }
  static void run(const Problem& p, const Call& call) { run_tiles<Tiles, float>(p, call); }
  // Returns the FLOPs of the products. The transforms add to them: less than a tenth from 128
  // channels on.
  static double flops(const Problem& p) {
    return 2.0 * Tiles::products(p) * p.in_channels * p.out_channels;
  }

  static long backward_input_scratch(const Problem& p, int threads) {
    const Problem q = flipped_problem(p);
    return round_up(weight_floats(q), 16) + scratch(q, threads);
  }
  static void run_backward_input(const Problem& p, const Call& call) {
    const Problem q = flipped_problem(p);
    Tiles::transform_weights(flipped_view(p, floats(call.second)), call.scratch, call.threads);
    run(q, {call.first,
            call.scratch,
            call.result,
            {},
            call.scratch + round_up(weight_floats(q), 16),
            call.threads});
  }
  static double backward_input_flops(const Problem& p) { return flops(flipped_problem(p)); }

  static constexpr Pass forward() { return {run, scratch, flops, weight_floats, pack}; }
  static constexpr Pass backward_input() {
    return {run_backward_input, backward_input_scratch, backward_input_flops,
            .supports = is_float32};
  }
};

// The forward pass of a kind of tile that takes tensors of bfloat16, too.
template <class Tiles>
struct WideningPass : WinogradPass<Tiles> {
  using Wide = WinogradPass<Tiles>;

  static void pack(const Problem& p, const void* w, float* packed, int threads) {
    if (is_float32(p)) return Wide::pack(p, w, packed, threads);
    Tiles::transform_weights(forward_view(p, halves(w)), packed, threads);
  }
  static void run(const Problem& p, const Call& call) {
    if (is_float32(p)) return Wide::run(p, call);
    run_tiles<Tiles, Bfloat16>(p, call);
  }
  static constexpr Pass forward() {
    return {run, Wide::scratch, Wide::flops, Wide::weight_floats, pack};
  }
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
