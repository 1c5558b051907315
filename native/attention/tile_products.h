// Products of attention by tile registers: panels that are padded for them, and up to two tiles of
// rows by a panel.
#pragma once
#include "gemm/amx_block.h"
#include "gemm/pair_panels.h"

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

}  // namespace BESTOF_TARGET
}  // namespace bestof
