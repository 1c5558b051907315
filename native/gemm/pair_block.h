// The product of a block of rows and a panel of bfloat16 pairs, by vector instructions.
#pragma once
#include "gemm/pair_kernel.h"
#include "gemm/product.h"
#include "gemm/tile.h"
#include "simd/isa.h"
#include "simd/tiles.h"

namespace bestof {
namespace BESTOF_TARGET {

// Panels are padded with zeros to a multiple of this depth.
constexpr long kDepthStep = 2;

// Rows of a block: copied, they take up to half of L2.
inline long block_rows(const Product& p, int threads) {
  const long fitting = level2_bytes() / 4 / row_stride(p.depth) / kTileRows;
  const long tiles = larger(smaller(fitting, 16), 1);
  const long share = divide_up(p.rows, static_cast<long>(threads));
  return smaller(tiles * kTileRows, round_up(larger(share, 1), kTileRows));
}

// Floats that a block needs besides its rows: sums stay in registers.
BESTOF_INLINE long sums_floats(long) {
  return 0;
}

// The results of R copied rows by one panel.
template <int R, class Out>
void multiply_tile(long rows, const Bfloat16* first, long stride, const Bfloat16* panel, long depth,
                   long columns, const Target<Out>& target) {
  if constexpr (R > 0) {
    if (rows != R) return multiply_tile<R - 1>(rows, first, stride, panel, depth, columns, target);
    fetch_target<R>(target.c, target.stride, target.turned, columns);
    Accumulator<R> acc;
    multiply<Walk::kRegular>(acc, TileRows<Bfloat16>{&first, 1, 0, stride}, 1, depth, panel, panel);
    finish_tile(acc, target, columns);
  }
}

// Multiplies `count` copied rows by one panel, and finishes the results.
template <class Out>
inline void multiply_block(const Bfloat16* rows, long stride, long count, const Bfloat16* panel,
                           long depth, long columns, const Target<Out>& target, float*) {
  const TileCut tiles = cut_rows(count);
  for (long tile = 0; tile < tiles.tiles; ++tile) {
    const long begin = tiles.begin(tile);
    multiply_tile<kTileRows>(tiles.begin(tile + 1) - begin, rows + begin * stride, stride, panel,
                             depth, columns, target_at(target, begin, 0));
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
