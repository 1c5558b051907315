// The weight gradient by the adjoint of Winograd's F(M, 3). V = BT d B as in the forward pass, and
// Z = A dY AT of each tile. dU[frequency] sums Z^T V over the tiles, and dW = GT dU G.
#pragma once
#include "conv/winograd_square.h"
#include "gemm/outer_product.h"

namespace bestof {
namespace BESTOF_TARGET {

// A block reads and writes dU, V and Z once. From K C / (K + C) tiles on, dU is the smaller
// part.
template <int M>
inline TilePlan plan_weight_tiles(const Problem& p) {
  TilePlan t = plan_tiles<SquareTiles<M>>(p, 1);
  const long balance = 3 * t.channels * t.outputs / (2 * (t.channels + t.outputs));
  const long wanted = smaller(larger(balance, 56), 512);
  t.blocks = divide_up(t.tiles, wanted);
  t.block = divide_up(t.tiles, larger(t.blocks, 1));
  t.m_stride = round_up(t.outputs, kLanes) + 16;
  t.v_step = frequency_step(SquareTiles<M>::kBlocking, t.block * t.v_stride);
  t.m_step = frequency_step(SquareTiles<M>::kBlocking, t.block * t.m_stride);
  return t;
}

// Computes A dY, column by column of the results, for one vector of output channels of a tile.
// `half` is [frequency][column].
template <int M, int Rows = M>
inline void spread_columns(const Problem& p, const Tile& tile, const float* corner, long lanes,
                           Vec (*half)[M]) {
  if constexpr (Rows > 1) {
    if (tile.rows < Rows) return spread_columns<M, Rows - 1>(p, tile, corner, lanes, half);
  }
  using Axis = Winograd<Rows, 3, M>;
  const long out_channels = p.out_channels, out_row = p.out_width * out_channels;
  for (long j = 0; j < tile.columns; ++j) {
    Vec d[Rows], o[Axis::kAlpha];
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      const float* pixel = corner + i * out_row + j * out_channels;
      d[i] = lanes == kLanes ? load(pixel) : load_first(pixel, lanes);
    }
    Axis::output_adjoint(d, o);
#pragma GCC unroll 8
    for (int i = 0; i < Axis::kAlpha; ++i) half[i][j] = o[i];
  }
}

// Computes (A dY) AT, row by row. Prefetches the lines `following` floats on.
template <int M, int Columns = M>
inline void spread_rows(const Tile& tile, const Vec (*half)[M], long m_step, long following,
                        float* z) {
  if constexpr (Columns > 1) {
    if (tile.columns < Columns)
      return spread_rows<M, Columns - 1>(tile, half, m_step, following, z);
  }
  using Axis = Winograd<Columns, 3, M>;
  for (long i = 0; i < tile.rows + 2; ++i) {
    Vec o[Axis::kAlpha];
    Axis::output_adjoint(half[i], o);
    float* to = z + frequency_at<M>(tile.rows, i) * (M + 2) * m_step;
#pragma GCC unroll 8
    for (int j = 0; j < Axis::kAlpha; ++j) {
      store(to + Axis::frequency(j) * m_step, o[j]);
      __builtin_prefetch(to + Axis::frequency(j) * m_step + following, 1, 3);
    }
  }
}

// Computes Z of tiles [first, first + count) in the block that begins at z. A short tile adds
// to fewer frequencies of dU: w does not depend on the frequencies that its results do not
// need.
template <int M>
inline void transform_gradient(const Problem& p, const TilePlan& t, const ShortTilesOrder<M>& order,
                               const float* grad, long first, long count, float* block) {
  constexpr int kAlpha = M + 2;
  const long m_step = t.m_step, m_stride = t.m_stride;
  const long out_channels = p.out_channels, out_row = p.out_width * p.out_channels;
  for (long at = first; at < first + count; ++at) {
    const Tile tile = tile_at(t, at);
    float* z = block + order.place(at, tile) * m_stride;
    const float* corner =
        grad + ((tile.n * p.out_height + tile.y * M) * p.out_width + tile.x * M) * p.out_channels;
    const bool whole = tile.rows == M && tile.columns == M;
    for (long k = 0; k < out_channels; k += kLanes) {
      const long lanes = smaller(out_channels - k, kLanes);
      const long following = k + kLanes < out_channels ? kLanes : m_stride - k;
      Vec half[kAlpha][M];
      if (!whole || lanes < kLanes) {
        spread_columns<M>(p, tile, corner + k, lanes, half);
        spread_rows<M>(tile, half, m_step, following, z + k);
        continue;
      }
#pragma GCC unroll 8
      for (int j = 0; j < M; ++j) {
        Vec d[M], o[kAlpha];
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i) d[i] = load(corner + i * out_row + j * out_channels + k);
        Winograd<M>::output_adjoint(d, o);
#pragma GCC unroll 8
        for (int i = 0; i < kAlpha; ++i) half[i][j] = o[i];
      }
#pragma GCC unroll 8
      for (int i = 0; i < kAlpha; ++i) {
        Vec o[kAlpha];
        Winograd<M>::output_adjoint(half[i], o);
#pragma GCC unroll 8
        for (int j = 0; j < kAlpha; ++j) {
          float* line = z + (i * kAlpha + j) * m_step + k;
          store(line, o[j]);
          __builtin_prefetch(line + following, 1, 3);
        }
      }
    }
  }
}

// Computes dW of one output channel from its row of dU, with frequencies `step` floats apart.
template <int M>
inline void gather_weight(const float* du, long step, long channels, float* dw) {
  constexpr int kAlpha = M + 2;
  for (long c = 0; c < channels; c += kLanes) {
    const long lanes = smaller(channels - c, kLanes);
    Vec half[3][kAlpha];
#pragma GCC unroll 8
    for (int j = 0; j < kAlpha; ++j) {
      half[0][j] = half[1][j] = half[2][j] = Vec{};
#pragma GCC unroll 8
      for (int i = 0; i < kAlpha; ++i) {
        const Vec v = load(du + (i * kAlpha + j) * step + c);
#pragma GCC unroll 3
        for (int r = 0; r < 3; ++r)
          half[r][j] += v * static_cast<float>(Winograd<M>::kMatrices.g[i][r]);
      }
    }
    for (int r = 0; r < 3; ++r) {
#pragma GCC unroll 3
      for (int s = 0; s < 3; ++s) {
        Vec sum = Vec{};
#pragma GCC unroll 8
        for (int j = 0; j < kAlpha; ++j)
          sum += half[r][j] * static_cast<float>(Winograd<M>::kMatrices.g[j][s]);
        float* to = dw + (r * 3 + s) * channels + c;
        if (lanes == kLanes) {
          store(to, sum);
        } else {
          store_first(to, sum, lanes);
        }
      }
    }
  }
}

template <int M>
struct WinogradWeightPass {
  static constexpr long kFrequencies = (M + 2) * (M + 2);

  // Scratch of a team: V, Z and dU; if dU is small, all three for every thread.
  struct Parts {
    TilePlan tiles;
    long ld, u_step, v_floats, z_floats, team;
    bool own;
  };

  // With a dU of its own, a thread saves two barriers a block. Up to two L2 that costs less.
  static Parts plan(const Problem& p) {
    Parts parts;
    parts.tiles = plan_weight_tiles<M>(p);
    parts.ld = round_up(p.in_channels, kLanes);
    parts.u_step = p.out_channels * parts.ld;
    parts.v_floats = kFrequencies * parts.tiles.v_step;
    parts.z_floats = kFrequencies * parts.tiles.m_step;
    parts.team = round_up(parts.v_floats + parts.z_floats + kFrequencies * parts.u_step, 16);
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

  static constexpr Pass pass() { return {run, scratch, WinogradPass<SquareTiles<M>>::flops}; }

 private:
  // Each thread adds blocks of tiles to its own dU; then these are added up.
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
#pragma omp for schedule(dynamic, 1)
      for (long block = 0; block < t.blocks; ++block) {
        const long first = block * t.block, count = smaller(t.block, t.tiles - first);
        const ShortTilesOrder<M> order(t, first, count);
        transform_square_input<M>(p, t, order, floats(call.second), first, count, 0, t.channels, v);
        transform_gradient<M>(p, t, order, floats(call.first), first, count, z);
        for (long xi = 0; xi < kFrequencies; ++xi) {
          const TileRun run = order.run(xi);
          const OuterRows rows = {nullptr, v + xi * t.v_step + run.begin * t.v_stride, t.v_stride,
                                  0};
          outer_product(z + xi * t.m_step + run.begin * t.m_stride, t.m_stride, p.out_channels,
                        rows, parts.ld, run.count, false, du + xi * parts.u_step, parts.ld);
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
        gather_weight<M>(first_du + k * parts.ld, parts.u_step, p.in_channels,
                         floats(call.result) + k * 9 * p.in_channels);
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
        const ShortTilesOrder<M> order(t, first, count);
#pragma omp for schedule(static)
        for (long tile = first; tile < first + count; ++tile) {
          transform_square_input<M>(p, t, order, floats(call.second), tile, 1, 0, t.channels, v);
          transform_gradient<M>(p, t, order, floats(call.first), tile, 1, z);
        }
#pragma omp for schedule(dynamic, 1)
        for (long item = 0; item < kFrequencies * k_parts; ++item) {
          const long xi = item / k_parts, part = item % k_parts;
          const long k0 = part_begin(p.out_channels, k_parts, part);
          const TileRun run = order.run(xi);
          const OuterRows rows = {nullptr, v + xi * t.v_step + run.begin * t.v_stride, t.v_stride,
                                  0};
          // Whole vectors of channels: V is zero behind the last channel.
          outer_product(z + xi * t.m_step + run.begin * t.m_stride + k0, t.m_stride,
                        part_begin(p.out_channels, k_parts, part + 1) - k0, rows, parts.ld,
                        run.count, block == 0, du + xi * parts.u_step + k0 * parts.ld, parts.ld);
        }
      }
#pragma omp for schedule(static)
      for (long k = 0; k < p.out_channels; ++k) {
        gather_weight<M>(du + k * parts.ld, parts.u_step, p.in_channels,
                         floats(call.result) + k * 9 * p.in_channels);
      }
    }
  }
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
