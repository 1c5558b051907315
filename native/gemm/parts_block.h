// The product of rows and a panel of which both are split into three parts of bfloat16, by the tile
// registers of AMX. Two tiles of rows by two tiles of columns take six products a step of depth:
// 24 of tiles for 12 loads, where plain bfloat16 takes a load a product. Operands in L2 therefore
// reach 500 GFLOP/s of float32 on a core that has 630 for six products, and 240 by vectors (Xeon
// with AMX, 128 x 128 x 768).
#pragma once
#include "gemm/amx_block.h"
#include "gemm/bfloat16_parts.h"

namespace bestof {
namespace BESTOF_TARGET {

// Loads one part of the rows, or of the columns, of a step.
template <int kRowTiles>
BESTOF_INLINE void load_rows(const Bfloat16* rows) {
  constexpr long kRowBytes = kTileDepth * sizeof(Bfloat16);
  load_tile<4>(rows, kRowBytes);
  if constexpr (kRowTiles == 2) load_tile<5>(rows + kTileElements, kRowBytes);
}

BESTOF_INLINE void load_columns(const Bfloat16* columns) {
  constexpr long kRowBytes = kTileDepth * sizeof(Bfloat16);
  load_tile<6>(columns, kRowBytes);
  load_tile<7>(columns + kTileElements, kRowBytes);
}

template <int kRowTiles>
BESTOF_INLINE void multiply_loaded() {
  multiply_tiles<0, 4, 6>();
  multiply_tiles<1, 4, 7>();
  if constexpr (kRowTiles == 2) {
    multiply_tiles<2, 5, 6>();
    multiply_tiles<3, 5, 7>();
  }
}

// Adds `steps` steps to the sums in the tiles 0 to 3, or 0 and 1: of each step the smallest
// products first. Between two products, either the rows or the columns stay. Asks for the next
// panel, `fetch.lines` lines a step.
template <int kRowTiles>
BESTOF_INLINE void add_parts(const Bfloat16* rows, const Bfloat16* columns, long steps,
                             FetchLines fetch) {
  constexpr long kPart = kPairElements;
  for (long step = 0; step < steps; ++step, rows += kStepElements, columns += kStepElements) {
    for (long line = 0; line < fetch.lines; ++line, fetch.from += kTileDepth)
      __builtin_prefetch(fetch.from, 0, 2);
    load_rows<kRowTiles>(rows);
    load_columns(columns + 2 * kPart);
    multiply_loaded<kRowTiles>();
    load_columns(columns + kPart);
    multiply_loaded<kRowTiles>();
    load_rows<kRowTiles>(rows + kPart);
    multiply_loaded<kRowTiles>();
    load_columns(columns);
    multiply_loaded<kRowTiles>();
    load_rows<kRowTiles>(rows + 2 * kPart);
    multiply_loaded<kRowTiles>();
    load_rows<kRowTiles>(rows);
    multiply_loaded<kRowTiles>();
  }
}

BESTOF_INLINE void scale_sums(float* sums, const float* scale, long rows) {
  for (long i = 0; i < rows; ++i, sums += kPanel) {
    const Vec factor = broadcast(scale[i]);
    store(sums, load(sums) * factor);
    store(sums + kLanes, load(sums + kLanes) * factor);
  }
}

// The operands that replace what has no parts: the rows as they lie, the panel as float32, and its
// columns that have none. The panel is null if nothing must be replaced.
struct WholeOperands {
  View rows;
  const float* panel;
  ColumnSet columns;
  float* gathered;  // scratch, [kTileHeight][kGatheredStride]
};

// Replaces the sums of `n` <= 16 rows from `row` on by those that vectors compute.
inline void replace_sums(const WholeOperands& whole, const float* scale, long row, long n,
                         long depth, float* sums) {
  View rows = whole.rows.at(row, 0);
  if (rows.along != 1) {
    gather_rows(rows, depth, n, whole.gathered);
    rows = {whole.gathered, kGatheredStride, 1};
  }
  for (long i = 0; i < n; ++i, sums += kPanel) {
    const ColumnSet replaced = scale[row + i] == kNotSplit ? ~0u : whole.columns;
    if (replaced == 0) continue;
    Accumulator<1> acc;
    clear(acc);
    accumulate<0>(acc, rows.data + i * rows.across, 0, depth, whole.panel, whole.panel);
    for (long j = 0; j < kPanel; ++j) {
      if (replaced >> j & 1) sums[j] = acc.v[0][j / kLanes][j % kLanes];
    }
  }
}

// Multiplies `count` split rows by one panel, and finishes the results. next: the
// panel that follows. sums: scratch, [32, kPanel].
inline void multiply_parts(const SplitRows& rows, long count, const Bfloat16* panel, long depth,
                           long columns, const Target<float>& target, const WholeOperands& whole,
                           const Bfloat16* next, float* sums) {
  const long steps = divide_up(depth, kTileDepth);
  constexpr long kStepLines = kStepElements / kTileDepth;
  const long blocks = divide_up(count, kBlockHeight), lines = divide_up(kStepLines, blocks);
  for (long row = 0; row < count; row += kBlockHeight) {
    const long block = row / kBlockHeight;
    const Bfloat16* from = rows.parts + block * steps * kStepElements;
    const FetchLines fetch = {next + block * steps * lines * kTileDepth, lines};
    const long n = smaller(count - row, kBlockHeight);
    if (n > kTileHeight) {
      clear_sums<2>();
      add_parts<2>(from, panel, steps, fetch);
      store_sums<2>(sums, kPanel);
    } else {
      clear_sums<1>();
      add_parts<1>(from, panel, steps, fetch);
      store_sums<1>(sums, kPanel);
    }
    if (rows.scaled) scale_sums(sums, rows.scale + row, n);
    for (long i = 0; whole.panel && i < n; i += kTileHeight) {
      replace_sums(whole, rows.scale, row + i, smaller(n - i, kTileHeight), depth,
                   sums + i * kPanel);
    }
    finish_panel(sums, n, target_at(target, row, 0), columns);
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
