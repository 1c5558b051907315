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
// AMX takes numbers below 2^-126 for zero, and infinity has no rest. So rows of A and columns of B
// whose largest magnitude is far from 1 are scaled by a power of two. What cannot be split is
// multiplied by vectors, a row or a column at a time: the bits of a result must not depend on what
// stands beside it. The error is less than that of float32 sums, plus depth * 2^-64 of the largest
// of the row times the largest of the column: numbers that are smaller by 2^-64 may be lost.
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
// Rows and columns whose largest magnitude has these exponents are taken as they are; others up to
// the wider bounds are scaled to 1. Sums of 768 products then stay below 2^73, although parts may
// be of either sign, and the largest product is above 2^-62 if it is one of a row and a column.
constexpr unsigned kLeastUnscaled = kExponentOfOne - 30, kMostUnscaled = kExponentOfOne + 30;
constexpr unsigned kLeastScaled = kExponentOfOne - 100, kMostScaled = kExponentOfOne + 126;

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

// What a row or a column was multiplied by, 2^-exponent, so its results are to be multiplied by
// 2^exponent. kNotSplit: it has no parts.
using ScaleExponent = float;
constexpr ScaleExponent kNotSplit = 1e4f;

// Rows in parts: [two tiles][step][part][32 rows][kTileDepth]. scale: the exponent of each row. The
// flags tell whether any is not 0, and whether any is kNotSplit.
struct SplitRows {
  const Bfloat16* parts;
  const ScaleExponent* scale;
  bool scaled, incomplete;
};

// Where the parts of a block of rows go, and its scratch.
struct RowBuffers {
  Bfloat16* parts;             // [rows rounded up to 32] x depth in steps x kParts
  Bfloat16* panel;             // the same of kPanel columns
  ScaleExponent* panel_scale;  // [kPanel]
  ScaleExponent* scale;        // [rows rounded up to 32]
  float* gathered;             // [kTileHeight][kGatheredStride]
  float* joined;               // [kDepthBlock][kPanel]
};

constexpr long kMostSteps = kDepthBlock / kTileDepth;
constexpr long kGatheredStride = kDepthBlock + kLanes;

// Copies `count` <= 16 rows, kGatheredStride apart.
inline void gather_rows(const View& from, long depth, long count, float* to) {
  if (from.along == 1) {
    for (long i = 0; i < count; ++i) {
      __builtin_memcpy(to + i * kGatheredStride, from.data + i * from.across,
                       depth * sizeof(float));
    }
    return;
  }
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

// The bits of the largest magnitude of a row.
inline unsigned largest_magnitude(const float* row, long depth) {
  VecInt most = VecInt{};
  for (long k = 0; k < depth; k += kLanes)
    most = larger_magnitude(most, load_first(row + k, smaller(depth - k, kLanes)));
  unsigned bits = 0;
  for (long i = 0; i < kLanes; ++i) bits = larger(bits, static_cast<unsigned>(most[i]));
  return bits;
}

BESTOF_INLINE float bits_as_float(unsigned bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

BESTOF_INLINE float power_of_two(unsigned exponent) {
  return bits_as_float(exponent << 23);
}

// The scale of a row or a column whose largest magnitude has these bits.
inline ScaleExponent scale_of(unsigned largest) {
  const unsigned exponent = largest >> 23;
  if (largest == 0 || (exponent >= kLeastUnscaled && exponent <= kMostUnscaled)) return 0.0f;
  if (exponent < kLeastScaled || exponent > kMostScaled) return kNotSplit;
  return static_cast<float>(exponent) - kExponentOfOne;
}

// 2^-scale.
BESTOF_INLINE float factor_of(ScaleExponent scale) {
  return power_of_two(kExponentOfOne - static_cast<int>(scale));
}

// Splits one row, and returns its scale. Its parts of a step lie kPairElements apart.
inline ScaleExponent split_one_row(const float* row, long depth, Bfloat16* to) {
  const ScaleExponent scale = scale_of(largest_magnitude(row, depth));
  if (scale == kNotSplit) return scale;
  const Vec factors = broadcast(factor_of(scale));
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
      const ScaleExponent scale =
          split_one_row(tile.data + row * tile.across, depth, to + row * kTileDepth);
      buffers.scale[i + row] = scale;
      split.scaled |= scale != 0.0f;
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

// The bits of the largest and of the smallest magnitude of each column that is not zero, the
// smallest less 1, so that no magnitude at all is the largest number without sign.
struct ColumnMagnitudes {
  VecInt largest[kPanelVectors] = {};
  VecInt smallest[kPanelVectors] = {~VecInt{}, ~VecInt{}};

  BESTOF_INLINE void add(int tile, Vec v) {
    largest[tile] = larger_magnitude(largest[tile], v);
    const VecInt bits = (reinterpret_cast<VecInt>(v) & 0x7FFFFFFF) - 1;
    smallest[tile] = reinterpret_cast<VecInt>(_mm512_min_epu32(
        reinterpret_cast<__m512i>(smallest[tile]), reinterpret_cast<__m512i>(bits)));
  }

  unsigned most(long j) const { return static_cast<unsigned>(largest[j / kLanes][j % kLanes]); }

  // Whether column j, multiplied by `factor`, has a subnormal number. Tiles would take it for zero,
  // which matters beside infinity.
  bool has_subnormal(long j, float factor) const {
    const auto least = static_cast<unsigned>(smallest[j / kLanes][j % kLanes]) + 1;
    return most(j) != 0 && bits_as_float(least) * factor < power_of_two(1);
  }

  ScaleExponent scale(long j) const {
    const ScaleExponent found = scale_of(most(j));
    return found == kNotSplit || has_subnormal(j, factor_of(found)) ? kNotSplit : found;
  }
};

// Which elements of depth are a pair: neighbours, or those of the lower and the upper half of a
// step. The halves suit rows of A that arrive as vectors: parts of these are paired by a shift.
enum class Pairing { kNeighbours, kHalves };

// Where in a step the first element of a pair stands, and how far behind it the second.
template <Pairing kPairing>
BESTOF_INLINE long first_of_pair(long pair) {
  return kPairing == Pairing::kNeighbours ? 2 * pair : pair;
}
template <Pairing kPairing>
constexpr long kBetween = kPairing == Pairing::kNeighbours ? 1 : kTileDepth / 2;
constexpr long kPairs = kTileDepth / 2;  // of a step

// Where pair `pair` of column j stands in the step that begins at k: its first part.
BESTOF_INLINE long pair_in_panel(long k, long pair, long j) {
  return k / kTileDepth * kStepElements + j / kTileColumns * kTileElements + pair * kTileDepth +
         j % kTileColumns * 2;
}

// Puts the columns `whole`, which have no parts, into their place: the upper halves of their bits
// as the first part, the lower ones as the second. Tiles multiply them as well, which concerns the
// results of these columns alone.
template <Pairing kPairing>
inline void put_whole_columns(const View& from, long depth, long columns,
                              const __mmask16 (&whole)[kPanelVectors], Bfloat16* panel) {
  for (long k = 0; k < depth; k += kTileDepth) {
    for (long pair = 0; pair < kPairs; ++pair) {
      const long first = k + first_of_pair<kPairing>(pair), second = first + kBetween<kPairing>;
      alignas(64) float rows[2][kPanel] = {};
      if (first < depth) pack_columns(from.at(0, first), 1, columns, rows[0]);
      if (second < depth) pack_columns(from.at(0, second), 1, columns, rows[1]);
      for (int tile = 0; tile < kPanelVectors; ++tile) {
        const auto even = reinterpret_cast<VecInt>(load(rows[0] + tile * kLanes));
        const auto odd = reinterpret_cast<VecInt>(load(rows[1] + tile * kLanes));
        const VecInt upper = (even >> 16 & 0xFFFF) | (odd & ~0xFFFF);
        const VecInt lower = (even & 0xFFFF) | odd << 16;
        Bfloat16* at = panel + pair_in_panel(k, pair, tile * kTileColumns);
        _mm512_mask_storeu_epi32(at, whole[tile], reinterpret_cast<__m512i>(upper));
        _mm512_mask_storeu_epi32(at + kPairElements, whole[tile], reinterpret_cast<__m512i>(lower));
      }
    }
  }
}

// Splits `columns` <= kPanel columns, multiplied by `factor`, as
// [step][part][tile][pair][column][2], tails zero. Returns their magnitudes, multiplied as well.
template <Pairing kPairing>
inline ColumnMagnitudes split_columns(const View& from, long depth, long columns,
                                      const Vec (&factor)[kPanelVectors], Bfloat16* to) {
  ColumnMagnitudes magnitudes;
  for (long k = 0; k < depth; k += kTileDepth, to += kStepElements) {
    alignas(64) float step[kTileDepth * kPanel];
    const long count = smaller(depth - k, kTileDepth);
    pack_columns(from.at(0, k), count, columns, step);
    if (count < kTileDepth)
      __builtin_memset(step + count * kPanel, 0, (kTileDepth - count) * kPanel * sizeof(float));
    for (long pair = 0; pair < kPairs; ++pair) {
#pragma GCC unroll 2
      for (int tile = 0; tile < kPanelVectors; ++tile) {
        const float* first = step + first_of_pair<kPairing>(pair) * kPanel + tile * kLanes;
        const Vec even = load(first) * factor[tile];
        const Vec odd = load(first + kBetween<kPairing> * kPanel) * factor[tile];
        magnitudes.add(tile, even);
        magnitudes.add(tile, odd);
        const Parts parts = split_pairs(even, odd);
#pragma GCC unroll 3
        for (int i = 0; i < kParts; ++i) {
          store_line(to + i * kPairElements + tile * kTileElements + pair * kTileDepth,
                     parts.part[i]);
        }
      }
    }
  }
  return magnitudes;
}

// The scales of a panel, as the sums need them.
struct PanelScale {
  Vec exponent[kPanelVectors];     // 0 for columns without parts
  __mmask16 whole[kPanelVectors];  // the columns without parts
  bool scaled, incomplete;
};

BESTOF_INLINE PanelScale panel_scale(const ScaleExponent* scale) {
  PanelScale of = {};
  for (int tile = 0; tile < kPanelVectors; ++tile) {
    const Vec found = load(scale + tile * kLanes);
    const VecInt whole = found == broadcast(kNotSplit);
    of.whole[tile] = _mm512_movepi32_mask(reinterpret_cast<__m512i>(whole));
    of.exponent[tile] = whole ? Vec{} : found;
    of.scaled |= _mm512_test_epi32_mask(reinterpret_cast<__m512i>(of.exponent[tile]),
                                        reinterpret_cast<__m512i>(of.exponent[tile])) != 0;
    of.incomplete |= of.whole[tile] != 0;
  }
  return of;
}

// Packs `columns` <= kPanel columns as `split_columns` does, and writes the scale of each.
inline void pack_parts(const View& from, long depth, long columns, Bfloat16* packed,
                       ScaleExponent* scale) {
  Vec factor[kPanelVectors] = {broadcast(1.0f), broadcast(1.0f)};
  const ColumnMagnitudes found =
      split_columns<Pairing::kNeighbours>(from, depth, columns, factor, packed);
  bool scaled = false;
  for (long j = 0; j < kPanel; ++j) {
    scale[j] = found.scale(j);
    if (scale[j] == 0.0f || scale[j] == kNotSplit) continue;
    factor[j / kLanes][j % kLanes] = factor_of(scale[j]);
    scaled = true;
  }
  if (scaled) split_columns<Pairing::kNeighbours>(from, depth, columns, factor, packed);
  const PanelScale written = panel_scale(scale);
  if (written.incomplete)
    put_whole_columns<Pairing::kNeighbours>(from, depth, columns, written.whole, packed);
}

// The exponents that the largest magnitude of a column may have.
struct ColumnLimits {
  unsigned least, most;
};

// The last part of a number is a multiple of 2^-24 of it.
constexpr float kLastPart = 1.0f / (1 << 24);

// Columns of a panel that have no parts, as bits.
using ColumnSet = unsigned;

BESTOF_INLINE PanelScale unscaled_but(ColumnSet whole) {
  PanelScale of = {};
  for (int tile = 0; tile < kPanelVectors; ++tile)
    of.whole[tile] = static_cast<__mmask16>(whole >> tile * kLanes);
  of.incomplete = whole != 0;
  return of;
}

// Packs columns as they are, without scales. Returns those that are beyond the limits, or have a
// number below 2^-102, whose last part is subnormal: the sum of the parts of all others is exact.
template <Pairing kPairing>
inline ColumnSet pack_within(const View& from, long depth, long columns, ColumnLimits limits,
                             Bfloat16* packed) {
  const Vec factor[kPanelVectors] = {broadcast(1.0f), broadcast(1.0f)};
  const ColumnMagnitudes found = split_columns<kPairing>(from, depth, columns, factor, packed);
  ColumnSet whole = 0;
  for (long j = 0; j < columns; ++j) {
    const unsigned exponent = found.most(j) >> 23;
    const bool within = exponent >= limits.least && exponent <= limits.most;
    if (found.most(j) != 0 && (!within || found.has_subnormal(j, kLastPart))) whole |= 1u << j;
  }
  if (whole != 0)
    put_whole_columns<kPairing>(from, depth, columns, unscaled_but(whole).whole, packed);
  return whole;
}

BESTOF_INLINE Vec blended(__mmask16 second, Vec a, Vec b) {
  return reinterpret_cast<Vec>(
      _mm512_mask_blend_ps(second, reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
}

// v * 2^exponent, rounded once.
BESTOF_INLINE Vec times_power(Vec v, Vec exponent) {
  return reinterpret_cast<Vec>(
      _mm512_scalef_ps(reinterpret_cast<__m512>(v), reinterpret_cast<__m512>(exponent)));
}

// A panel as float32, [depth][kPanel]: columns without parts from their bits, others from the sums
// of their parts. The sum is exact for numbers above 2^-102, times the largest of a scaled column.
template <Pairing kPairing>
inline void join_panel(const Bfloat16* panel, long depth, const PanelScale& scale, float* to) {
  for (long i = 0; i < round_up(depth, kTileDepth); i += 2) {
    const long begin = i - i % kTileDepth, pair = i % kTileDepth / 2;
    const long k = begin + first_of_pair<kPairing>(pair), second = k + kBetween<kPairing>;
    for (int tile = 0; tile < kPanelVectors; ++tile) {
      const Bfloat16* at = panel + pair_in_panel(begin, pair, tile * kTileColumns);
      VecInt part[kParts];
      for (int n = 0; n < kParts; ++n) part[n] = load_pairs(at + n * kPairElements);
      const Vec even = lower_halves(part[2]) + lower_halves(part[1]) + lower_halves(part[0]);
      const Vec odd = upper_halves(part[2]) + upper_halves(part[1]) + upper_halves(part[0]);
      const VecInt even_bits = part[0] << 16 | (part[1] & 0xFFFF);
      const VecInt odd_bits = (part[0] & ~0xFFFF) | (part[1] >> 16 & 0xFFFF);
      const Vec exponent = scale.exponent[tile];
      const __mmask16 whole = scale.whole[tile];
      float* column = to + tile * kLanes;
      if (k < depth) {
        store(column + k * kPanel,
              blended(whole, times_power(even, exponent), reinterpret_cast<Vec>(even_bits)));
      }
      if (second < depth) {
        store(column + second * kPanel,
              blended(whole, times_power(odd, exponent), reinterpret_cast<Vec>(odd_bits)));
      }
    }
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
