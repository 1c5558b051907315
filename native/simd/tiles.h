// The sizes of tiles of bfloat16, for kernels that run by the tile registers of AMX or, without
// them, by vectors.
#pragma once
#if defined(__AMX_BF16__)
#include "simd/amx.h"
#else
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {

constexpr long kTileHeight = 16;
constexpr long kTileDepth = 32;

// Vectors need no preparation, and do not sleep.
struct TileRegisters {
  TileRegisters() {}
};
BESTOF_INLINE void keep_tiles_awake() {}

}  // namespace BESTOF_TARGET
}  // namespace bestof
#endif

namespace bestof {
namespace BESTOF_TARGET {

// Rows that are multiplied at once.
constexpr long kBlockHeight = 2 * kTileHeight;

}  // namespace BESTOF_TARGET
}  // namespace bestof
