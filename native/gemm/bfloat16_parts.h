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

// Where the parts of a block of rows go, and scratch.
struct PartBuffers {
  Bfloat16* parts;       // [rows rounded up to 32] x depth in steps x kParts
  ScaleExponent* scale;  // [rows rounded up to 32]
  float* gathered;       // [kTileHeight][kGatheredStride]
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
inline SplitRows split_rows(const View& rows, long depth, long count, const PartBuffers& buffers) {
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

}  // namespace BESTOF_TARGET
}  // namespace bestof
