// The tile registers of AMX. Each thread has eight of them: 16 rows of 64 bytes, which are 16 x 16
// sums of float32, or 16 rows of 32 elements of bfloat16. One instruction multiplies two tiles of
// bfloat16 and adds the products to a tile of sums: 16,384 operations in 16 cycles.
//
// A thread configures its tiles before it uses them, and releases them afterwards. A thread that
// holds tiles makes each switch to another thread slower, because the system saves 8 KiB.
// `simd/isa.cpp` asks the system for the permission to use them.
//
// The compiler's own intrinsics do not say that a load reads memory, so stores to it might be
// delayed beyond the load. These functions say so.
#pragma once
#include "conv/problem.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {

constexpr long kTileHeight = 16;   // rows of a tile register
constexpr long kTileDepth = 32;    // elements of bfloat16 in a row of it
constexpr long kTileColumns = 16;  // sums in a row of it

// Configures all tiles of the calling thread for as long as it lives. It takes 0.1 us.
class TileRegisters {
 public:
  TileRegisters() {
    struct alignas(64) {
      unsigned char palette, start_row, reserved[14];
      unsigned short row_bytes[16];
      unsigned char rows[16];
    } shape = {};
    shape.palette = 1;
    for (int i = 0; i < 8; ++i) {
      shape.row_bytes[i] = 64;
      shape.rows[i] = kTileHeight;
    }
    asm volatile("ldtilecfg %0" : : "m"(shape));
  }
  ~TileRegisters() { asm volatile("tilerelease"); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

template <int kTile>
BESTOF_INLINE void clear_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

// Loads rows that lie `stride` bytes apart.
template <int kTile>
BESTOF_INLINE void load_tile(const void* from, long stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
BESTOF_INLINE void store_tile(void* to, long stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
}

// sums += rows times columns. `columns` holds pairs of neighbours in depth: [pair][column][2].
template <int kSums, int kRows, int kColumns>
BESTOF_INLINE void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kRows), "i"(kColumns));
}

// Multiplies tiles whose sums are not needed. If there is no product for 0.4 us, the unit sleeps,
// and the next products take 0.25 us longer (Xeon with AMX, 4 GHz). So a long loop that does other
// work calls this now and then. It costs up to 60 cycles, because vectors lose one of their two
// ports for a while. The sums in tile 0 are lost.
BESTOF_INLINE void keep_tiles_awake() {
  multiply_tiles<0, 4, 6>();
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
