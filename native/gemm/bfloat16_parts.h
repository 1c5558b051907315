// float32 as the sum of three numbers of bfloat16. 24 bits of a float32 are three times eight: the
// first part is the value rounded, the second what that misses, and the third the exact rest. A
// product of two values is then, without the parts below 2^-23 of it,
//
//   a b = a1 b1 + (a1 b2 + a2 b1) + (a1 b3 + a2 b2 + a3 b1)
//
// and a tile register of AMX multiplies bfloat16 sixteen times as fast as a vector float32. (The
// split: Henry, Tang, Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For
// Higher-Precision Computations", ARITH 2019.)
//
// AMX takes numbers below 2^-126 for zero, and infinity has no rest. So operands must be far from
// both ends. Rows of A that are near them are scaled by a power of two. Rows and columns that
// cannot be split are multiplied by vectors, one by one: the bits of a result must not depend on
// what stands beside it.
#pragma once
#include "gemm/panels.h"
#include "simd/amx.h"

namespace bestof {
namespace BESTOF_TARGET {

static_assert(kPanel == 2 * kTileColumns, "a panel is two tiles wide");

constexpr int kParts = 3;
// Elements of a tile, of two tiles side by side, and of all parts of both.
constexpr long kTileElements = kTileHeight * kTileDepth;
constexpr long kPairElements = 2 * kTileElements;
constexpr long kStepElements = kParts * kPairElements;

// Exponents as float32 stores them: 127 is that of 1.
constexpr unsigned kExponentOfOne = 127;
// Rows of A whose largest magnitude has these exponents are taken as they are; others up to the
// wider bounds are scaled. Columns of B are not scaled. The largest product of a row and a column
// is then above 2^-91, and what is taken for zero below 2^-35 of it.
constexpr unsigned kLeastUnscaled = kExponentOfOne - 30, kMostUnscaled = kExponentOfOne + 60;
constexpr unsigned kLeastScaled = kExponentOfOne - 100, kMostScaled = kExponentOfOne + 126;
constexpr unsigned kLeastColumn = kExponentOfOne - 60, kMostColumn = kExponentOfOne + 100;

// The bits of the larger magnitude of each lane. Bits of floats are in the order of magnitudes,
// with NaN behind infinity.
BESTOF_INLINE VecInt larger_magnitude(VecInt bits, Vec v) {
  const VecInt others = reinterpret_cast<VecInt>(v) & 0x7FFFFFFF;
  return bits > others ? bits : others;
}

BESTOF_INLINE void store_line(Bfloat16* to, VecInt elements) {
  *reinterpret_cast<VecOfPairs*>(to) = elements;
}

// The values that stand in the upper and in the lower halves of lanes.
BESTOF_INLINE Vec upper_halves(VecInt pairs) {
  return reinterpret_cast<Vec>(pairs & ~0xFFFF);
}
BESTOF_INLINE Vec lower_halves(VecInt pairs) {
  return reinterpret_cast<Vec>(pairs << 16);
}

// The parts of 32 elements, one behind the other: those of `low` first.
struct Parts {
  VecInt part[kParts];
};

BESTOF_INLINE Vec widened_half(__m256i bits) {
  return reinterpret_cast<Vec>(widened_bits(reinterpret_cast<VecBits>(bits)) << 16);
}

BESTOF_INLINE Parts split_row(Vec low, Vec high) {
  Parts parts;
#pragma GCC unroll 3
  for (int i = 0; i < kParts; ++i) {
    const __m512i both = round_two(low, high);
    parts.part[i] = reinterpret_cast<VecInt>(both);
    low -= widened_half(_mm512_castsi512_si256(both));
    high -= widened_half(_mm512_extracti64x4_epi64(both, 1));
  }
  return parts;
}

// The parts of kLanes neighbours in each of two rows, as pairs of what stands in one column.
BESTOF_INLINE Parts split_pairs(Vec even, Vec odd) {
  const __m512i in_turn =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                       21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  Parts parts;
#pragma GCC unroll 3
  for (int i = 0; i < kParts; ++i) {
    const __m512i both = round_two(even, odd);
    parts.part[i] = reinterpret_cast<VecInt>(_mm512_permutexvar_epi16(in_turn, both));
    even -= lower_halves(parts.part[i]);
    odd -= upper_halves(parts.part[i]);
  }
  return parts;
}

// ---- rows of A ----

// Rows in parts: [two tiles][step][part][32 rows][kTileDepth]. Results of row i are to be
// multiplied by scale[i], a power of two, or by kNotSplit if it has no parts. The flags tell
// whether any is not 1, and whether any is kNotSplit.
struct SplitRows {
  const Bfloat16* parts;
  const float* scale;
  bool scaled, incomplete;
};
constexpr float kNotSplit = 0.0f;

// Where the parts of a block of rows go, and its scratch.
struct RowBuffers {
  Bfloat16* parts;  // [rows rounded up to 32] x depth in steps x kParts
  Bfloat16* panel;  // the same of kPanel columns
  float* scale;     // [rows rounded up to 32]
  float* gathered;  // [kTileHeight][kGatheredStride]
  float* joined;    // [kDepthBlock][kPanel]
};

constexpr long kMostSteps = kDepthBlock / kTileDepth;
constexpr long kGatheredStride = kDepthBlock + kLanes;

// Copies `count` <= 16 rows whose elements are not neighbours, kGatheredStride apart.
inline void gather_rows(const View& from, long depth, long count, float* to) {
  if (from.across != 1) {
    for (long i = 0; i < count; ++i) {
      for (long k = 0; k < depth; ++k)
        to[i * kGatheredStride + k] = from.data[i * from.across + k * from.along];
    }
    return;
  }
  for (long k = 0; k < depth; k += kLanes) {
    Vec tile[kLanes];
#pragma GCC unroll 16
    for (long j = 0; j < kLanes; ++j)
      tile[j] = k + j < depth ? load_first(from.data + (k + j) * from.along, count) : Vec{};
    turn(tile);
#pragma GCC unroll 16
    for (long i = 0; i < kLanes; ++i) store(to + i * kGatheredStride + k, tile[i]);
  }
}

// The exponent of the largest magnitude of a row, as float32 stores it: 255 if any is not finite.
inline unsigned largest_exponent(const float* row, long depth, bool& zero) {
  VecInt most = VecInt{};
  for (long k = 0; k < depth; k += kLanes)
    most = larger_magnitude(most, load_first(row + k, smaller(depth - k, kLanes)));
  unsigned bits = 0;
  for (long i = 0; i < kLanes; ++i) bits = larger(bits, static_cast<unsigned>(most[i]));
  zero = bits == 0;
  return bits >> 23;
}

BESTOF_INLINE float bits_as_float(unsigned bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

BESTOF_INLINE float power_of_two(unsigned exponent) {
  return bits_as_float(exponent << 23);
}

// Splits one row, and returns its scale. Its parts of a step lie kPairElements apart.
inline float split_one_row(const float* row, long depth, Bfloat16* to) {
  bool zero;
  const unsigned exponent = largest_exponent(row, depth, zero);
  float factor = 1.0f, scale = 1.0f;
  if (!zero && (exponent < kLeastUnscaled || exponent > kMostUnscaled)) {
    if (exponent < kLeastScaled || exponent > kMostScaled) return kNotSplit;
    factor = power_of_two(2 * kExponentOfOne - exponent);
    scale = power_of_two(exponent);
  }
  const Vec factors = broadcast(factor);
  for (long k = 0; k < depth; k += kTileDepth, to += kStepElements) {
    const long left = depth - k;
    const Vec low = left >= kLanes ? load(row + k) : load_first(row + k, left);
    const Vec high = left >= kTileDepth ? load(row + k + kLanes)
                                        : load_first(row + k + kLanes, larger(left - kLanes, 0));
    const Parts parts = split_row(low * factors, high * factors);
#pragma GCC unroll 3
    for (int i = 0; i < kParts; ++i) store_line(to + i * kPairElements, parts.part[i]);
  }
  return scale;
}

// Splits `count` rows of `depth` steps. Rows up to the next multiple of 16 become zero.
inline SplitRows split_rows(const View& rows, long depth, long count, const RowBuffers& buffers) {
  const long steps = divide_up(depth, kTileDepth);
  SplitRows split = {buffers.parts, buffers.scale, false, false};
  for (long i = 0; i < count; i += kTileHeight) {
    const long n = smaller(count - i, kTileHeight);
    View tile = rows.at(i, 0);
    if (tile.along != 1) {
      gather_rows(tile, depth, n, buffers.gathered);
      tile = {buffers.gathered, kGatheredStride, 1};
    }
    Bfloat16* to = buffers.parts + i / (2 * kTileHeight) * steps * kStepElements +
                   i / kTileHeight % 2 * kTileElements;
    for (long row = 0; row < n; ++row) {
      const float scale =
          split_one_row(tile.data + row * tile.across, depth, to + row * kTileDepth);
      buffers.scale[i + row] = scale;
      split.scaled |= scale != 1.0f;
      split.incomplete |= scale == kNotSplit;
    }
    for (long row = n; row < kTileHeight; ++row) {
      for (long part = 0; part < steps * kParts; ++part)
        store_line(to + part * kPairElements + row * kTileDepth, VecInt{});
    }
  }
  return split;
}

// ---- columns of B ----

// The columns of a panel that have no parts, as bits.
using ColumnSet = unsigned;

inline ColumnSet columns_not_split(const VecInt (&most)[kPanelVectors]) {
  ColumnSet set = 0;
  for (int j = 0; j < kPanel; ++j) {
    const auto bits = static_cast<unsigned>(most[j / kLanes][j % kLanes]);
    if (bits != 0 && (bits >> 23 < kLeastColumn || bits >> 23 > kMostColumn)) set |= 1u << j;
  }
  return set;
}

// Where the pair of column j in the steps k and k + 1 of depth stands: its first part.
BESTOF_INLINE Bfloat16* pair_in_panel(Bfloat16* panel, long k, long j) {
  return panel + k / kTileDepth * kStepElements + j / kTileColumns * kTileElements +
         k % kTileDepth / 2 * kTileDepth + j % kTileColumns * 2;
}

// Puts a column that has no parts into their place: the upper halves of its bits as the first
// part, the lower ones as the second. Tiles multiply it as well, which concerns its results alone.
inline void put_column(const View& from, long depth, long j, Bfloat16* panel) {
  for (long k = 0; k < depth; ++k) {
    unsigned bits;
    __builtin_memcpy(&bits, from.data + j * from.across + k * from.along, sizeof bits);
    Bfloat16* at = pair_in_panel(panel, k - k % 2, j) + k % 2;
    at[0].bits = static_cast<unsigned short>(bits >> 16);
    at[kPairElements].bits = static_cast<unsigned short>(bits);
  }
}

// Packs `columns` <= kPanel columns as [step][part][tile][pair][column][2], tails zero. Returns
// those that cannot be split.
inline ColumnSet pack_parts(const View& from, long depth, long columns, Bfloat16* packed) {
  Bfloat16* to = packed;
  VecInt most[kPanelVectors] = {};
  for (long k = 0; k < depth; k += kTileDepth, to += kStepElements) {
    alignas(64) float step[kTileDepth * kPanel];
    const long count = smaller(depth - k, kTileDepth);
    pack_columns(from.at(0, k), count, columns, step);
    if (count < kTileDepth)
      __builtin_memset(step + count * kPanel, 0, (kTileDepth - count) * kPanel * sizeof(float));
    for (long pair = 0; pair < kTileDepth / 2; ++pair) {
#pragma GCC unroll 2
      for (int tile = 0; tile < kPanelVectors; ++tile) {
        const Vec even = load(step + 2 * pair * kPanel + tile * kLanes);
        const Vec odd = load(step + (2 * pair + 1) * kPanel + tile * kLanes);
        most[tile] = larger_magnitude(larger_magnitude(most[tile], even), odd);
        const Parts parts = split_pairs(even, odd);
#pragma GCC unroll 3
        for (int i = 0; i < kParts; ++i) {
          store_line(to + i * kPairElements + tile * kTileElements + pair * kTileDepth,
                     parts.part[i]);
        }
      }
    }
  }
  const ColumnSet left = columns_not_split(most);
  for (ColumnSet set = left; set != 0; set &= set - 1)
    put_column(from, depth, __builtin_ctz(set), packed);
  return left;
}

// A panel as float32, [depth][kPanel]: sums of parts, which are exact, and the columns of `whole`
// from their bits.
inline void join_panel(const Bfloat16* panel, long depth, ColumnSet whole, float* to) {
  for (long k = 0; k < depth; k += 2) {
    for (int tile = 0; tile < kPanelVectors; ++tile) {
      const Bfloat16* at = pair_in_panel(const_cast<Bfloat16*>(panel), k, tile * kTileColumns);
      VecInt part[kParts];
      for (int i = 0; i < kParts; ++i) part[i] = load_pairs(at + i * kPairElements);
      const VecInt second = reinterpret_cast<VecInt>(upper_halves(part[1]));
      Vec even = lower_halves(part[2]) + lower_halves(part[1]) + lower_halves(part[0]);
      Vec odd = upper_halves(part[2]) + upper_halves(part[1]) + upper_halves(part[0]);
      for (int j = 0; j < kLanes; ++j) {
        if ((whole >> (tile * kLanes + j) & 1) == 0) continue;
        even[j] = bits_as_float(part[0][j] << 16 | (part[1][j] & 0xFFFF));
        odd[j] = bits_as_float((part[0][j] & ~0xFFFF) | (second[j] >> 16 & 0xFFFF));
      }
      store(to + k * kPanel + tile * kLanes, even);
      if (k + 1 < depth) store(to + (k + 1) * kPanel + tile * kLanes, odd);
    }
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
