// Products of attention in bfloat16: panels that are padded to whole tiles, and one or two tiles of
// rows by a panel. Tile registers multiply them, or else vectors.
#pragma once
#include "gemm/pair_panels.h"
#if defined(__AMX_BF16__)
#include "gemm/amx_block.h"
#else
#include "gemm/pair_kernel.h"
#include "gemm/tile.h"
#include "simd/tiles.h"
#endif

namespace bestof {
namespace BESTOF_TARGET {

// Packs columns as pack_pair_columns does. Panels are padded with zeros to whole steps of depth.
inline void pack_tile_columns(const ViewOf<Bfloat16>& from, long depth, long count, Bfloat16* to) {
  const long filled = round_up(depth, 2), padded = round_up(depth, kTileDepth);
  for (long j = 0; j < count; j += kPanel, to += padded * kPanel) {
    pack_pair_columns(from.at(j, 0), depth, smaller(count - j, kPanel),
                      reinterpret_cast<Pair*>(to));
    __builtin_memset(to + filled * kPanel, 0, (padded - filled) * kPanel * sizeof(Bfloat16));
    keep_tiles_awake();
  }
}

#if defined(__AMX_BF16__)

// sums[rows, kPanel] = rows by `depth` of a panel, or with kAdds the same added to them.
template <bool kAdds, int kRowTiles>
BESTOF_INLINE void multiply_rows(const Bfloat16* rows, long stride, const Bfloat16* panel,
                                 long depth, float* sums, long sums_stride) {
  if constexpr (kAdds) {
    load_sums<kRowTiles>(sums, sums_stride);
  } else {
    clear_sums<kRowTiles>();
  }
  add_steps<kRowTiles>(rows, stride, panel, StepsInLine{}, 0, depth / kTileDepth, {nullptr, 0});
  store_sums<kRowTiles>(sums, sums_stride);
}

#else

// The same for R rows, whose sums stay in registers.
template <bool kAdds, int R>
BESTOF_INLINE void multiply_some_rows(const Bfloat16* rows, long stride, const Bfloat16* panel,
                                      long depth, float* sums, long sums_stride) {
  Accumulator<R> acc;
  multiply<Walk::kRegular>(acc, TileRows<Bfloat16>{&rows, 1, 0, stride}, 1, depth, panel, panel);
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j) {
      float* to = sums + i * sums_stride + j * kLanes;
      store(to, kAdds ? load(to) + acc.v[i][j] : acc.v[i][j]);
    }
  }
}

template <bool kAdds, int kRowTiles>
BESTOF_INLINE void multiply_rows(const Bfloat16* rows, long stride, const Bfloat16* panel,
                                 long depth, float* sums, long sums_stride) {
  // 32 rows as 11, 11 and 10, or 16 as 8 and 8.
  constexpr int kFirst = kRowTiles == 2 ? 11 : 8, kLast = kRowTiles == 2 ? 10 : 8;
  long row = 0;
  for (; row + kLast < kRowTiles * kTileHeight; row += kFirst)
    multiply_some_rows<kAdds, kFirst>(rows + row * stride, stride, panel, depth,
                                      sums + row * sums_stride, sums_stride);
  multiply_some_rows<kAdds, kLast>(rows + row * stride, stride, panel, depth,
                                   sums + row * sums_stride, sums_stride);
}

#endif

}  // namespace BESTOF_TARGET
}  // namespace bestof
