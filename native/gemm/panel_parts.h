// Columns of B as parts of bfloat16 (gemm/bfloat16_parts.h), in panels as tile registers read them.
#pragma once
#include "gemm/bfloat16_parts.h"
#include "gemm/tile_depth.h"

namespace bestof {
namespace BESTOF_TARGET {

// The smaller of each two numbers without sign.
BESTOF_INLINE VecInt smaller_bits(VecInt a, VecInt b) {
  return reinterpret_cast<VecInt>(
      _mm512_min_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
}

// The bits of the largest magnitude of each column.
struct LargestMagnitudes {
  VecInt largest[kPanelVectors] = {};

  BESTOF_INLINE void add(int tile, Vec v) { largest[tile] = larger_magnitude(largest[tile], v); }

  unsigned most(long j) const { return static_cast<unsigned>(largest[j / kLanes][j % kLanes]); }
  ScaleExponent scale(long j) const { return scale_of(most(j)); }
};

// The bits of the largest and of the smallest magnitude of each column that is not zero, the
// smallest less 1, so that no magnitude at all is the largest number without sign.
struct ColumnMagnitudes {
  VecInt largest[kPanelVectors] = {};
  VecInt smallest[kPanelVectors] = {~VecInt{}, ~VecInt{}};

  BESTOF_INLINE void add(int tile, Vec v) {
    largest[tile] = larger_magnitude(largest[tile], v);
    const VecInt bits = (reinterpret_cast<VecInt>(v) & 0x7FFFFFFF) - 1;
    smallest[tile] = smaller_bits(smallest[tile], bits);
  }

  void add(const ColumnMagnitudes& others) {
#pragma GCC unroll 2
    for (int tile = 0; tile < kPanelVectors; ++tile) {
      largest[tile] = largest[tile] > others.largest[tile] ? largest[tile] : others.largest[tile];
      smallest[tile] = smaller_bits(smallest[tile], others.smallest[tile]);
    }
  }

  unsigned most(long j) const { return static_cast<unsigned>(largest[j / kLanes][j % kLanes]); }

  // Whether column j, multiplied by `factor`, has a subnormal number. Its parts would be zero,
  // which matters beside infinity, if vectors multiply what is joined from parts.
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

// Splits the pairs [first, last) of one step, whose rows of kPanel columns lie `stride` apart.
template <Pairing kPairing, class Magnitudes>
BESTOF_INLINE void split_pairs_of(const float* rows, long stride, long first, long last,
                                  const Vec (&factor)[kPanelVectors], Bfloat16* to,
                                  Magnitudes& magnitudes) {
  for (long pair = first; pair < last; ++pair) {
#pragma GCC unroll 2
    for (int tile = 0; tile < kPanelVectors; ++tile) {
      const float* at = rows + first_of_pair<kPairing>(pair) * stride + tile * kLanes;
      const Vec even = load(at) * factor[tile];
      const Vec odd = load(at + kBetween<kPairing> * stride) * factor[tile];
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

// Copies rows [first, last) of the step at `from`, of `columns` <= kPanel columns, to
// [kTileDepth][kPanel]. What lies behind `depth` becomes zero.
inline void copy_step(const View& from, long depth, long columns, long first, long last,
                      float* to) {
  const long end = larger(smaller(depth, last), first);
  pack_columns(from.at(0, first), end - first, columns, to + first * kPanel);
  __builtin_memset(to + end * kPanel, 0, (last - end) * kPanel * sizeof(float));
}

// Splits `columns` <= kPanel columns, multiplied by `factor`, as
// [step][part][tile][pair][column][2], tails zero. Returns their magnitudes, multiplied as well.
template <Pairing kPairing>
inline ColumnMagnitudes split_columns(const View& from, long depth, long columns,
                                      const Vec (&factor)[kPanelVectors], Bfloat16* to) {
  ColumnMagnitudes magnitudes;
  for (long k = 0; k < depth; k += kTileDepth, to += kStepElements) {
    alignas(64) float step[kTileDepth * kPanel];
    copy_step(from.at(0, k), depth - k, columns, 0, kTileDepth, step);
    split_pairs_of<kPairing>(step, kPanel, 0, kPairs, factor, to, magnitudes);
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

// v * 2^exponent, rounded once.
BESTOF_INLINE Vec times_power(Vec v, Vec exponent) {
  return reinterpret_cast<Vec>(
      _mm512_scalef_ps(reinterpret_cast<__m512>(v), reinterpret_cast<__m512>(exponent)));
}

// The scales of columns. Returns whether any is neither 0 nor kNotSplit.
template <class Magnitudes>
inline bool scales_of(const Magnitudes& found, ScaleExponent* scale) {
  bool scaled = false;
  for (long j = 0; j < kPanel; ++j) {
    scale[j] = found.scale(j);
    scaled |= scale[j] != 0.0f && scale[j] != kNotSplit;
  }
  return scaled;
}

// What columns of these scales are to be multiplied by.
BESTOF_INLINE void factors_of(const ScaleExponent* scale, Vec (&factor)[kPanelVectors]) {
  for (int tile = 0; tile < kPanelVectors; ++tile) {
    const Vec exponent = load(scale + tile * kLanes);
    const VecInt split = exponent != broadcast(kNotSplit);
    factor[tile] = times_power(broadcast(1.0f), split ? -exponent : Vec{});
  }
}

// Splits columns step by step.
inline ColumnMagnitudes split_steps(const View& from, const TileDepth& depth, long columns,
                                    const Vec (&factor)[kPanelVectors], Bfloat16* to) {
  ColumnMagnitudes magnitudes;
  for (long step = 0; step < depth.all_steps(); ++step, to += kStepElements) {
    magnitudes.add(split_columns<Pairing::kNeighbours>(from.at(0, depth.begin(step)),
                                                       depth.count(step), columns, factor, to));
  }
  return magnitudes;
}

// Packs `columns` <= kPanel columns as `split_columns` does, and writes the scale of each.
inline void pack_parts(const View& from, const TileDepth& depth, long columns, Bfloat16* packed,
                       ScaleExponent* scale) {
  Vec factor[kPanelVectors] = {broadcast(1.0f), broadcast(1.0f)};
  const ColumnMagnitudes found = split_steps(from, depth, columns, factor, packed);
  if (scales_of(found, scale)) {
    factors_of(scale, factor);
    split_steps(from, depth, columns, factor, packed);
  }
  const PanelScale written = panel_scale(scale);
  for (long step = 0; written.incomplete && step < depth.all_steps(); ++step) {
    put_whole_columns<Pairing::kNeighbours>(from.at(0, depth.begin(step)), depth.count(step),
                                            columns, written.whole, packed + step * kStepElements);
  }
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
