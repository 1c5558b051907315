// How depth is cut into steps for the tile registers of AMX.
#pragma once
#include "simd/amx.h"

namespace bestof {
namespace BESTOF_TARGET {

// Depth is `parts` parts of `size` elements, each padded to `steps` steps of kTileDepth. The parts
// of a step follow each other: all of the first 32 elements, then all of the next ones.
struct TileDepth {
  long parts, size, steps;

  static BESTOF_INLINE TileDepth of(long depth) { return {1, depth, divide_up(depth, kTileDepth)}; }

  BESTOF_INLINE long all_steps() const { return parts * steps; }
  // Where step `step` begins in depth without padding, and how many elements it has.
  BESTOF_INLINE long begin(long step) const {
    return step % parts * size + step / parts * kTileDepth;
  }
  BESTOF_INLINE long count(long step) const {
    return smaller(size - step / parts * kTileDepth, kTileDepth);
  }
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
