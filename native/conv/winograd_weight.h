// The weight gradient by the adjoint of Winograd's F. V = BT d B as in the forward pass, and
// Z = A dY AT of each tile. dU[frequency] sums Z^T V over the tiles, and dW = GT dU G.
//
// Where a stride cuts the pixels into several images, V has the channels of all of them side by
// side, and each image gives its taps of dW.
//
// A short tile of a `ShortTilesOrder` adds to fewer frequencies of dU: w does not depend on those
// that its results do not need.
#pragma once
#include "conv/winograd.h"
#include "gemm/outer_product.h"

namespace bestof {
namespace BESTOF_TARGET {

template <class Tiles>
struct WinogradWeightPass {
  using Y = typename Tiles::AxisY;
  using X = typename Tiles::AxisX;
  static constexpr long kImages = Tiles::kImages, kFrequencies = Tiles::kFrequencies;
  static constexpr long kTapsY = kImages * Y::kTaps - Tiles::kFewer,
                        kTapsX = kImages * X::kTaps - Tiles::kFewer, kTaps = kTapsY * kTapsX;

  // Scratch of a team: V, Z and dU; if dU is small, all three for every thread.
  struct Parts {
    TilePlan tiles;
    long ld, u_step, v_floats, z_floats, team;
    bool own;
  };

  // A block reads and writes dU, V and Z once. From K C / (K + C) tiles on, dU is the smaller part.
  // With a dU of its own, a thread saves two barriers a block. Up to two L2 that costs less.
  static Parts plan(const Problem& p) {
    TilePlan t = plan_tiles<Tiles>(p, 1);
    const long columns = kImages * kImages * t.channels;
    const long balance = 3 * columns * t.outputs / (2 * (columns + t.outputs));
    t.blocks = divide_up(t.tiles, smaller(larger(balance, 56), 512));
    t.block = divide_up(t.tiles, larger(t.blocks, 1));
    t.m_stride = round_up(t.outputs, kLanes) + 16;
    t.v_step = frequency_step(Tiles::kBlocking, t.block * t.v_stride);
    t.m_step = frequency_step(Tiles::kBlocking, t.block * t.m_stride);
    Parts parts;
    parts.tiles = t;
    parts.ld = round_up(columns, kLanes);
    parts.u_step = p.out_channels * parts.ld;
    parts.v_floats = kFrequencies * t.v_step;
    parts.z_floats = kFrequencies * t.m_step;
    // A vector of an image's channels may end behind the last row of dU.
    parts.team =
        round_up(parts.v_floats + parts.z_floats + kFrequencies * parts.u_step + kLanes, 16);
    parts.own = 4 * kFrequencies * parts.u_step <= 2 * level2_bytes();
    return parts;
  }

  static long scratch(const Problem& p, int threads) {
    const Parts parts = plan(p);
    return (parts.own ? threads : 1) * parts.team;
  }

  static void run(const Problem& p, const Call& call) {
    if (plan(p).own) {
      run_own(p, call);
    } else {
      run_shared(p, call);
    }
  }

  static constexpr Pass pass() {
    return {run, scratch, WinogradPass<Tiles>::flops, .supports = is_float32};
  }

 private:
  // Computes dW of one output channel from its row of dU, with frequencies `step` floats apart.
  static void gather_weight(const float* du, long step, long channels, float* dw) {
    for (long image = 0; image < kImages * kImages; ++image) {
      gather_image(du, step, channels, image % kImages, image / kImages, dw);
    }
  }

  // Computes the taps of one image.
  static void gather_image(const float* du, long step, long channels, long odd_row, long odd_column,
                           float* dw) {
    const long rows = odd_row * Tiles::kFewer, columns = odd_column * Tiles::kFewer;  // that lack
    for (long c = 0; c < channels; c += kLanes) {
      const long lanes = smaller(channels - c, kLanes);
      Vec half[Y::kTaps][X::kAlpha];
      for (long j = 0; j < X::kAlpha - columns; ++j) {
#pragma GCC unroll 7
        for (int r = 0; r < Y::kTaps; ++r) half[r][j] = Vec{};
        for (long i = 0; i < Y::kAlpha - rows; ++i) {
          const Vec u = load(du + (i * X::kAlpha + j) * step +
                             Tiles::place(i, odd_row, odd_column) * channels + c);
#pragma GCC unroll 7
          for (int r = 0; r < Y::kTaps; ++r)
            half[r][j] += u * static_cast<float>(Y::kMatrices.g[i][r]);
        }
      }
      for (long r = 0; r < Y::kTaps - rows; ++r) {
        for (long s = 0; s < X::kTaps - columns; ++s) {
          Vec sum = Vec{};
          for (long j = 0; j < X::kAlpha - columns; ++j)
            sum += half[r][j] * static_cast<float>(X::kMatrices.g[j][s]);
          const long tap = (kImages * r + odd_row) * kTapsX + kImages * s + odd_column;
          float* to = dw + tap * channels + c;
          if (lanes == kLanes) {
            store(to, sum);
          } else {
            store_first(to, sum, lanes);
          }
        }
      }
    }
  }

  // The columns of dU at a frequency, in whole vectors. What lies behind the last channel is
  // computed and never read.
  static long columns(const Problem& p, long xi) {
    return round_up(Tiles::depth(xi) * p.in_channels, kLanes);
  }

  // Each thread adds blocks of tiles to its own dU; then these are added up. Which thread takes a
  // block is fixed: the order of the sums, and so the bits, must not depend on the load.
  static void run_own(const Problem& p, const Call& call) {
    const Parts parts = plan(p);
    const TilePlan& t = parts.tiles;
#pragma omp parallel num_threads(call.threads)
    {
      const int team = omp_get_num_threads();
      float* v = call.scratch + omp_get_thread_num() * parts.team;
      float* z = v + parts.v_floats;
      float* du = z + parts.z_floats;
      for (long i = 0; i < kFrequencies * parts.u_step; ++i) du[i] = 0.0f;
#pragma omp for schedule(static)
      for (long block = 0; block < t.blocks; ++block) {
        const long first = block * t.block, count = smaller(t.block, t.tiles - first);
        const typename Tiles::Order order(t, first, count);
        Tiles::transform_input(p, t, order, floats(call.second), first, count, 0, t.channels, v);
        Tiles::transform_gradient(p, t, order, floats(call.first), first, count, z);
        for (long xi = 0; xi < kFrequencies; ++xi) {
          const TileRun run = order.run(xi);
          const OuterRows rows = {nullptr, v + xi * t.v_step + run.begin * t.v_stride, t.v_stride,
                                  0};
          outer_product(z + xi * t.m_step + run.begin * t.m_stride, t.m_stride, p.out_channels,
                        rows, columns(p, xi), run.count, false, du + xi * parts.u_step, parts.ld);
        }
      }
      float* first_du = call.scratch + parts.v_floats + parts.z_floats;
#pragma omp for schedule(static)
      for (long k = 0; k < p.out_channels; ++k) {
        for (long xi = 0; xi < kFrequencies; ++xi) {
          float* sum = first_du + xi * parts.u_step + k * parts.ld;
          for (int other = 1; other < team; ++other) {
            const float* addend = sum + other * parts.team;
            for (long c = 0; c < parts.ld; c += kLanes)
              store(sum + c, load(sum + c) + load(addend + c));
          }
        }
        gather_weight(first_du + k * parts.ld, parts.u_step, p.in_channels,
                      floats(call.result) + k * kTaps * p.in_channels);
      }
    }
  }

  // All threads share a block. The transforms are split by tiles, the products by frequencies and
  // rows of dU.
  static void run_shared(const Problem& p, const Call& call) {
    const Parts parts = plan(p);
    const TilePlan& t = parts.tiles;
    float* v = call.scratch;
    float* z = v + parts.v_floats;
    float* du = z + parts.z_floats;
    const long k_parts =
        smaller(divide_up(16L * call.threads, kFrequencies), divide_up(p.out_channels, kTileRows));
#pragma omp parallel num_threads(call.threads)
    {
      for (long block = 0; block < t.blocks; ++block) {
        const long first = block * t.block, count = smaller(t.block, t.tiles - first);
        const typename Tiles::Order order(t, first, count);
#pragma omp for schedule(static)
        for (long tile = first; tile < first + count; ++tile) {
          Tiles::transform_input(p, t, order, floats(call.second), tile, 1, 0, t.channels, v);
          Tiles::transform_gradient(p, t, order, floats(call.first), tile, 1, z);
        }
#pragma omp for schedule(dynamic, 1)
        for (long item = 0; item < kFrequencies * k_parts; ++item) {
          const long xi = item / k_parts, part = item % k_parts;
          const long k0 = part_begin(p.out_channels, k_parts, part);
          const TileRun run = order.run(xi);
          const OuterRows rows = {nullptr, v + xi * t.v_step + run.begin * t.v_stride, t.v_stride,
                                  0};
          outer_product(z + xi * t.m_step + run.begin * t.m_stride + k0, t.m_stride,
                        part_begin(p.out_channels, k_parts, part + 1) - k0, rows, columns(p, xi),
                        run.count, block == 0, du + xi * parts.u_step + k0 * parts.ld, parts.ld);
        }
      }
#pragma omp for schedule(static)
      for (long k = 0; k < p.out_channels; ++k) {
        gather_weight(du + k * parts.ld, parts.u_step, p.in_channels,
                      floats(call.result) + k * kTaps * p.in_channels);
      }
    }
  }
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
