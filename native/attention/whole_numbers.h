// The operands of the gradients of attention of bfloat16: products take them as they are.
// Weights and slopes are rounded to bfloat16.
#pragma once
#include "attention/gradient_layout.h"
#include "attention/tile_products.h"
#include "attention/tile_slopes.h"

namespace bestof {
namespace BESTOF_TARGET {

// Turns pairs of rows, 16 lanes of each, and stores them as rows, `stride` elements apart, of 32
// neighbours.
BESTOF_INLINE void store_turned(Vec (&pairs)[kLanes], Bfloat16* to, long stride) {
  turn(pairs);
#pragma GCC unroll 16
  for (long i = 0; i < kLanes; ++i)
    store_pairs(reinterpret_cast<Pair*>(to + i * stride), reinterpret_cast<VecInt>(pairs[i]));
}

// Copies rows, padded with zeros to whole tiles, into `to` and transposed into `turned`.
inline void copy_queries(const Bfloat16* from, long token, long count, long size, Bfloat16* to,
                         Bfloat16* turned, long turned_stride) {
  const long depth = round_up(size, kTileDepth);
  for (long first = 0; first < count; first += kBlockHeight) {
    for (long d = 0; d < depth; d += kLanes) {
      Vec pairs[kLanes];
#pragma GCC unroll 16
      for (long i = 0; i < kLanes; ++i) {
        VecInt bits[2];
#pragma GCC unroll 2
        for (long one = 0; one < 2; ++one) {
          const long row = first + 2 * i + one;
          bits[one] = row < count ? row_bits(from + row * token, d, size) : VecInt{};
          _mm256_store_si256(reinterpret_cast<__m256i*>(to + row * depth + d),
                             _mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(bits[one])));
        }
        pairs[i] = reinterpret_cast<Vec>(bits[0] | (bits[1] << 16));
      }
      store_turned(pairs, turned + d * turned_stride + first, turned_stride);
    }
    keep_tiles_awake();
  }
}

// Returns the power of two, from 1 to 2^32, by which slopes are multiplied before they are rounded.
// Tiles take a slope below 2^-126 for zero. Scales far above 1 would make that error large.
BESTOF_INLINE float slope_power_of(float scale) {
  float power = 1.0f;
  while (power < 4294967296.0f && __builtin_fabsf(scale) >= 2.0f * power) power *= 2.0f;
  return power;
}

// A power of two that a result is to be multiplied by, besides the scale.
struct NoPower {
  BESTOF_INLINE Vec operator()(Vec v) const { return v; }
};

struct WholeNumbers {
  using Element = Bfloat16;
  // kPartCount: the numbers of bfloat16 that an operand, a weight or a slope consists of.
  // kGroupQueries: the queries that add to dK and dV together. Their weights and slopes of a block
  // of keys take 256 KB of L2.
  static constexpr long kPartCount = 1, kGroupQueries = 256;

  BESTOF_INLINE float score_scale(float scale) const { return scale; }
  BESTOF_INLINE float slope_power(float scale) const { return slope_power_of(scale); }
  BESTOF_INLINE float result_scale(float scale) const { return scale / slope_power_of(scale); }
  void scale_sums(float*, long) const {}
  bool has_failed() const { return false; }
  NoPower query_power() const { return {}; }
  NoPower key_power() const { return {}; }
  NoPower value_power() const { return {}; }

  // The distance of transposed rows.
  static long turned_stride(long queries) { return row_stride(round_up(queries, kBlockHeight)); }

  // The transposed rows from `d` on, and of these the queries from `first` on.
  static const Bfloat16* turned_at(const Bfloat16* turned, long d, long first, long queries) {
    return turned + d * turned_stride(queries) + first;
  }

  void copy_q(const Bfloat16* from, long token, long count, long size, Bfloat16* to,
              Bfloat16* turned) const {
    copy_queries(from, token, count, size, to, turned, turned_stride(count));
  }
  void copy_gradient(const Bfloat16* from, long token, long count, long size, Bfloat16* to,
                     Bfloat16* turned) const {
    copy_q(from, token, count, size, to, turned);
  }

  void pack_keys(const Bfloat16* k, long token, long size, long count, Bfloat16* keys,
                 Bfloat16* key_rows) const {
    pack_tile_columns({k, token, 1}, size, count, keys);
    pack_tile_columns({k, 1, token}, count, size, key_rows);
  }
  void pack_values(const Bfloat16* v, long token, long size, long count, Bfloat16* values) const {
    pack_tile_columns({v, token, 1}, size, count, values);
  }

  // Where the slopes of the keys from `begin` on stand in those of a strip.
  static Bfloat16* slopes_at(Bfloat16* slopes, long begin) { return slopes + begin; }

  void slope(const StripQueries& queries, const StripScores& in, const StripSlopes& out) const {
    slope_strip(queries, in, out);
  }

  // Returns which key of a panel lies in column `column` of half `half` of transposed sums.
  static long key_of(long half, long column) { return paired_key(half, column); }

  template <bool kAdds, int kRowTiles>
  BESTOF_INLINE static void multiply(const Bfloat16* rows, long stride, const Bfloat16* panel,
                                     long depth, float* sums, long sums_stride) {
    multiply_rows<kAdds, kRowTiles>(rows, stride, panel, depth, sums, sums_stride);
  }
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
