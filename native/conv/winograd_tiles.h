// Cuts a convolution into Winograd tiles, and the tiles into blocks.
#pragma once
#include "conv/problem.h"
#include "gemm/micro_kernel.h"
#include "simd/isa.h"
#include "simd/stream.h"

namespace bestof {
namespace BESTOF_TARGET {

// How a kind of tile is cut into blocks; every kind states its own as `kBlocking`. The numbers were
// measured. L2 is that of one core.
struct Blocking {
  long level2_parts;  // V and the products of a block fill one part of L2 of so
                      // many
  long least, most;   // tiles of a block
  // Frequencies lie a multiple of `align` floats plus `pad` apart, so that those of a tile fall
  // into different sets of L1.
  long align, pad;
  bool phases;   // whether few tiles are computed in three phases (`run_phases`)
  bool streams;  // whether weights may exceed L2, and results all caches
  bool fetches;  // whether the pixels of the next block are asked for during the
                 // products
};

// A plan of the tiles of one convolution.
//
// Winograd computes a tile of results, `rows` x `columns`, from a tile of pixels. It transforms the
// pixels (V), multiplies each frequency of V by the same frequency of the weights (U), sums over
// channels, and transforms the products back. A block is a run of tiles, numbered along x, then y,
// then the images. A thread takes a block from the pixels to the results while V and the products
// lie in its L2: V is [plane][tile of the block][v_stride], the products are [frequency][tile of
// the block][m_stride]. `v_step` and `m_step` are the floats from one plane, or frequency, to the
// next.
//
// With few tiles for many threads, each thread would read all of U for a few tiles. Such a problem
// is `stationary`: it has one block, and threads share its frequencies, so that U is read once.
struct TilePlan {
  long rows, columns;            // of the results of a tile
  long tiles_y, tiles_x, tiles;  // in an image, and in all
  long last_rows,
      last_columns;  // of the results of the last tile that lie in the image
  long channels, outputs, panels;
  long v_stride, m_stride, v_step, m_step;
  long block, blocks;
  bool stationary;
  bool streamed;  // whether results bypass the caches
};

// A tile by its place in the image, and how many of its results lie there.
struct Tile {
  long n, y, x, rows, columns;
};

inline Tile tile_at(const TilePlan& t, long index) {
  const long line = index / t.tiles_x, n = line / t.tiles_y;
  Tile tile = {n, line - n * t.tiles_y, index - line * t.tiles_x, t.rows, t.columns};
  if (tile.y == t.tiles_y - 1) tile.rows = t.last_rows;
  if (tile.x == t.tiles_x - 1) tile.columns = t.last_columns;
  return tile;
}

BESTOF_INLINE long frequency_step(const Blocking& blocking, long floats) {
  return round_up(floats, blocking.align) + blocking.pad;
}

// Returns how many tiles a block may have, so that the scratch of all threads without packed
// weights stays below twice the input and output of the layer. `tile`: floats of V and products for
// a tile and frequency. `slack`: more floats for a frequency.
BESTOF_INLINE long promised_tiles(const Problem& p, long frequencies, long tile, long slack,
                                  int threads) {
  const long layer = p.batch * (p.in_height * p.in_width * p.in_channels +
                                p.out_height * p.out_width * p.out_channels);
  return larger((2 * layer / (threads * frequencies) - slack) / tile, kTileRows);
}

// The tiles of a block, and the number of tiles for a thread below which phases are faster.
struct BlockSize {
  long wanted, few;
};

// If U fits in L2, V and the products take a part of it: a third measured best for 3x3 kernels, 14
// tiles of 64 channels in 1 MiB, 28 in 2.
//
// If U streams from L3, a block has as many tiles as keep V and the products in L2, and 28 a MiB at
// most. With 1 MiB, 56 and 112 tiles are 20 to 30 % slower for 128 and 256 channels; with 2 MiB 112
// are 4 to 8 % slower. 14 tiles in place of 28 take 0.92 of the time for 256 channels @56, and 0.89
// for 128 @112 by F(6), because stores to products beyond L2 hold up the micro-kernel.
//
// If L3 cannot keep U, U streams from memory and blocks have twice as many tiles. With fewer than
// 112 tiles for a thread, the phases are faster, because they read U once (512 channels @14, batch
// 8: 1.4 times).
inline BlockSize block_size(const Blocking& blocking, long tile_bytes, long weight_bytes) {
  const long level2 = level2_bytes();
  const long wanted =
      smaller(larger(level2 / blocking.level2_parts / tile_bytes, blocking.least), blocking.most);
  if (!blocking.streams || weight_bytes <= level2) {
    const bool from_memory = blocking.streams && weight_bytes > level3_bytes() / 3;
    return {wanted, from_memory ? 112 : wanted};
  }
  const long streaming = smaller(larger(level2 >> 20, 1), 2) * 28;
  if (weight_bytes > level3_bytes() / 3) return {2 * streaming, 112};
  return {smaller(larger(level2 / tile_bytes, blocking.least), streaming), streaming};
}

// Plans the tiles of a problem. `Tiles` is a kind of tile (see conv/winograd.h).
template <class Tiles>
inline TilePlan plan_tiles(const Problem& p, int threads) {
  constexpr Blocking kBlocking = Tiles::kBlocking;
  TilePlan t;
  t.rows = Tiles::kRows;
  t.columns = Tiles::kColumns > 0 ? Tiles::kColumns : p.out_width;
  t.tiles_y = divide_up(p.out_height, t.rows);
  t.tiles_x = divide_up(p.out_width, t.columns);
  t.tiles = p.batch * t.tiles_y * t.tiles_x;
  t.last_rows = p.out_height - (t.tiles_y - 1) * t.rows;
  t.last_columns = p.out_width - (t.tiles_x - 1) * t.columns;
  t.channels = p.in_channels;
  t.outputs = p.out_channels;
  t.panels = divide_up(p.out_channels, kPanel);
  t.v_stride = Tiles::v_floats(p);
  t.m_stride = Tiles::kJoined ? 0 : t.panels * kPanel + 16;
  const long tile = t.v_stride + t.m_stride;
  const BlockSize size = block_size(kBlocking, 4 * Tiles::kFrequencies * tile,
                                    4 * Tiles::kProducts * t.channels * t.panels * kPanel);
  t.stationary = kBlocking.phases && t.tiles < size.few * threads;
  t.block = larger(t.tiles, 1);  // the scratch of an empty batch is asked for, too
  t.blocks = 1;
  if (!t.stationary) {
    long wanted = size.wanted;
    if constexpr (kBlocking.most > 1) {
      const long slack = 2 * (kBlocking.align + kBlocking.pad);
      wanted = smaller(wanted, promised_tiles(p, Tiles::kFrequencies, tile, slack, threads));
      // A multiple of the micro-kernel's tiles: blocks of 15 took 1.27 times as long as blocks of
      // 14 (64 channels @224).
      wanted = larger(wanted / kTileRows, 1) * kTileRows;
    }
    t.blocks = round_up(divide_up(larger(t.tiles, 1), wanted), threads);
    t.block = larger(divide_up(t.tiles, t.blocks), 1);
    t.blocks = divide_up(t.tiles, t.block);
  }
  t.v_step = frequency_step(kBlocking, t.block * t.v_stride);
  t.m_step = frequency_step(kBlocking, t.block * t.m_stride);
  const long pixels =
      p.batch * (p.in_height * p.in_width * t.channels + p.out_height * p.out_width * t.outputs);
  t.streamed =
      kBlocking.streams && !t.stationary && t.outputs % kLanes == 0 && beyond_caches(pixels);
  return t;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
