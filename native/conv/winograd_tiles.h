// The tiles of Winograd's F(M x M, 3 x 3), and the blocks in which a thread takes them, by the
// caches at hand.
#pragma once
#include "conv/problem.h"
#include "gemm/micro_kernel.h"
#include "simd/isa.h"
#include "simd/stream.h"

namespace bestof {
namespace BESTOF_TARGET {

// How the tiles of a problem are laid out and walked. V is [alpha^2][block][v_stride], the products
// are [alpha^2][block][m_stride]; from frequency to frequency v_step and m_step floats.
struct TilePlan {
  long tiles_y, tiles_x, tiles;
  long side, last_rows,
      last_columns;  // rows and columns of a tile of results, and those of the last in the image
  long channels, outputs, panels;
  long v_stride, m_stride, v_step, m_step;
  long block, blocks;
  bool stationary;
  bool streamed;  // the results, past the caches
};

// Products along one axis of `results`: the last tile has as many as its results need.
template <int M>
inline double products_along(long results) {
  const long tiles = divide_up(results, M);
  return static_cast<double>(results + 2 * tiles);
}

// Frequencies lie an odd number of cache lines apart, modulo the sets of L1: a transform writes to
// alpha^2 of them.
BESTOF_INLINE long frequency_step(long floats) {
  return round_up(floats, 1024) + 80;
}

// How many tiles a block of the fused mode may have for the scratch of all threads, apart from
// packed weights, to stay below twice the input and output of the layer; `tile` floats of V and
// products a tile and frequency, `slack` floats a frequency beside them.
BESTOF_INLINE long promised_tiles(const Problem& p, long frequencies, long tile, long slack,
                                  int threads) {
  const long layer = p.batch * (p.in_height * p.in_width * p.in_channels +
                                p.out_height * p.out_width * p.out_channels);
  return larger((2 * layer / (threads * frequencies) - slack) / tile, kTileRows);
}

template <int M>
inline TilePlan plan_tiles(const Problem& p, int threads) {
  constexpr long kFrequencies = (M + 2) * (M + 2);
  TilePlan t;
  t.tiles_y = divide_up(p.out_height, M);
  t.tiles_x = divide_up(p.out_width, M);
  t.tiles = p.batch * t.tiles_y * t.tiles_x;
  t.side = M;
  t.last_rows = p.out_height - (t.tiles_y - 1) * M;
  t.last_columns = p.out_width - (t.tiles_x - 1) * M;
  t.channels = p.in_channels;
  t.outputs = p.out_channels;
  t.panels = divide_up(p.out_channels, kPanel);
  t.v_stride = round_up(t.channels, kLanes) + 16;
  t.m_stride = t.panels * kPanel + 16;
  // Where U fits in L2, a third of it for V and the products measured best: 14 tiles of 64 channels
  // in 1 MiB, 28 in 2. Where U streams from L3, as many as keep V and the products in L2, and 28 a
  // MiB at most: with 1 MiB, 56 and 112 are 20 to 30 % slower for 128 and 256 channels, with 2 MiB
  // 112 are 4 to 8 %; 14 in place of 28 take 0.92 of the time for 256 channels @56, 0.89 for 128
  // @112 by F(6), because stores to products beyond L2 hold up the micro-kernel. Where L3 cannot
  // keep U beside all else, it streams from memory and is spread over twice as many tiles; fewer
  // than 112 a thread are then better left to the phases that read it once (512 channels @14, batch
  // 8: 1.4 times).
  const long tile_bytes = 4 * kFrequencies * (t.v_stride + t.m_stride);
  const long weight_bytes = 4 * kFrequencies * t.channels * t.panels * kPanel;
  const bool from_memory = weight_bytes > level3_bytes() / 3;
  const long streaming = smaller(larger(level2_bytes() >> 20, 1), 2) * 28;
  long wanted = smaller(larger(level2_bytes() / 3 / tile_bytes, 14), 96);
  if (weight_bytes > level2_bytes()) {
    wanted =
        from_memory ? 2 * streaming : smaller(larger(level2_bytes() / tile_bytes, 14), streaming);
  }
  const long few = from_memory ? 112 : weight_bytes > level2_bytes() ? streaming : wanted;
  t.stationary = t.tiles < few * threads;
  if (t.stationary) {
    t.block = t.tiles;
    t.blocks = 1;
  } else {
    wanted = smaller(
        wanted, promised_tiles(p, kFrequencies, t.v_stride + t.m_stride, 2 * (1024 + 80), threads));
    // Whole tiles of the micro-kernel: blocks of 15 took 1.27 times as long as blocks of 14 (64
    // channels @224).
    wanted = larger(wanted / kTileRows, 1) * kTileRows;
    t.blocks = round_up(divide_up(t.tiles, wanted), threads);
    t.block = divide_up(t.tiles, t.blocks);
    t.blocks = divide_up(t.tiles, t.block);
  }
  t.v_step = frequency_step(t.block * t.v_stride);
  t.m_step = frequency_step(t.block * t.m_stride);
  const long pixels =
      p.batch * (p.in_height * p.in_width * t.channels + p.out_height * p.out_width * t.outputs);
  t.streamed = !t.stationary && t.outputs % kLanes == 0 && beyond_caches(pixels);
  return t;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
