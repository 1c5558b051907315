// The operands of the gradients of attention of float32: sums of three numbers of bfloat16
// (gemm/bfloat16_parts.h), at the accuracy of float32.
//
// Tile registers take numbers below 2^-126 for zero. So each operand of the heads that share keys
// is multiplied by a power of two that makes its largest magnitude one of [1, 2), and weights are
// multiplied by 2^kRaised. Results are multiplied by the inverse powers. Heads of which an operand
// spans too many powers of two, or is infinite or NaN, are computed by vectors altogether; so are
// those with a weight far above 1. Therefore other tokens of a head with a NaN may change in their
// last bits.
#pragma once
#include "attention/gradient_layout.h"
#include "attention/split_slopes.h"
#include "attention/whole_numbers.h"
#include "gemm/panel_parts.h"
#include "gemm/parts_block.h"

namespace bestof {
namespace BESTOF_TARGET {

// How many powers of two an operand may span. Products of gradients and values then stay above
// 2^-102, so that tiles take none of the six products of their parts for zero.
constexpr int kValueSpan = 42, kOtherSpan = 60;

// The exponents that the largest magnitude of an operand may have, and the scale: powers of two of
// scores and of results then are normal numbers.
constexpr int kFarthestOperand = 40, kFarthestGradient = 80;
constexpr float kMostScale = 1 << 20, kLeastScale = 1.0f / kMostScale;

// The largest sum of gradient * result of a query, of operands in [1, 2).
constexpr unsigned kMostSum = kExponentOfOne + 20;

// The magnitudes of an operand of some heads.
class OperandRange {
 public:
  void add(const float* x, long token, long count, long size) {
    for (long i = 0; i < count; ++i, x += token) {
      long d = 0;
      for (; d + kTileDepth <= size; d += kTileDepth) {
        found_.add(0, load(x + d));
        found_.add(1, load(x + d + kLanes));
      }
      for (; d < size; d += kLanes) found_.add(0, load_first(x + d, smaller(size - d, kLanes)));
    }
  }

  // The exponent of the largest magnitude; 0 if all are zeros.
  int exponent() const {
    const unsigned bits = most();
    return bits == 0 ? 0 : static_cast<int>(bits >> 23) - static_cast<int>(kExponentOfOne);
  }

  bool is_within(int farthest, int span) const {
    if (most() == 0) return true;
    const auto least = static_cast<int>((smallest() >> 23)) - static_cast<int>(kExponentOfOne);
    return exponent() <= farthest && exponent() >= -farthest && exponent() - least <= span;
  }

 private:
  unsigned most() const {
    return _mm512_reduce_max_epu32(_mm512_max_epu32(reinterpret_cast<__m512i>(found_.largest[0]),
                                                    reinterpret_cast<__m512i>(found_.largest[1])));
  }
  unsigned smallest() const {
    return _mm512_reduce_min_epu32(
               _mm512_min_epu32(reinterpret_cast<__m512i>(found_.smallest[0]),
                                reinterpret_cast<__m512i>(found_.smallest[1]))) +
           1;
  }

  ColumnMagnitudes found_;
};

// Returns 2^exponent, a normal number.
BESTOF_INLINE float power_of(int exponent) {
  return power_of_two(static_cast<unsigned>(static_cast<int>(kExponentOfOne) + exponent));
}

// Multiplies by a power of two.
struct Power {
  float exponent;
  BESTOF_INLINE Vec operator()(Vec v) const { return times_power(v, broadcast(exponent)); }
};

// Nothing waits to be done between products.
struct NothingWaiting {
  void finish(long, long) {}
  void proceed() {}
};

// The exponents of the operands of the heads that share keys.
struct SplitNumbers {
  using Element = float;
  // Weights and slopes of a group and a block of keys take 192 KB of L2. Groups of 256 queries took
  // 1.0 to 1.25 times as long (128 to 1,024 tokens), and groups of 128 as long.
  static constexpr long kPartCount = kParts, kGroupQueries = 64;

  int q, k, v, gradient;
  bool* is_beyond;  // whether a weight or a sum was beyond its bound

  // Whether vectors must compute these heads after all.
  bool has_failed() const { return *is_beyond; }

  float score_scale(float scale) const { return scale * power_of(q + k); }
  // Weights, and so slopes, are multiplied by a power of two anyway.
  float slope_power(float) const { return 1.0f; }
  float result_scale(float scale) const { return scale; }
  Power query_power() const { return {static_cast<float>(gradient + v + k - kRaised)}; }
  Power key_power() const { return {static_cast<float>(gradient + v + q - kRaised)}; }
  Power value_power() const { return {static_cast<float>(gradient - kRaised)}; }

  void scale_sums(float* sums, long count) const {
    VecInt most = VecInt{};
    for (long i = 0; i < count; i += kLanes) {
      const Vec sum = times_power(load(sums + i), broadcast(static_cast<float>(-gradient - v)));
      store(sums + i, sum);
      most = larger_magnitude(most, sum);
    }
    *is_beyond |= _mm512_reduce_max_epu32(reinterpret_cast<__m512i>(most)) >> 23 > kMostSum;
  }

  // Blocks of transposed rows follow one another as those of rows do, without a stride.
  static long turned_stride(long) { return 0; }
  static const Bfloat16* turned_at(const Bfloat16* turned, long d, long first, long queries) {
    return turned + (d * round_up(queries, kBlockHeight) + first * kBlockHeight) * kParts;
  }

  // Splits rows, padded with zeros to whole tiles, as [block of 32][step][part][32 rows][32], into
  // `to`, and transposed into `turned`.
  static void split_queries(const float* from, long token, long count, long size, int exponent,
                            Bfloat16* to, Bfloat16* turned) {
    const Vec factor = broadcast(power_of(-exponent));
    const long steps = divide_up(size, kTileDepth), blocks = divide_up(count, kBlockHeight);
    for (long block = 0; block < blocks; ++block) {
      for (long step = 0; step < steps; ++step, to += kStepElements) {
        const float* x = from + block * kBlockHeight * token + step * kTileDepth;
        const long rows = smaller(count - block * kBlockHeight, kBlockHeight);
        split_step(x, token, rows, size - step * kTileDepth, factor, to);
        turn_step(to, turned + (step * blocks + block) * kStepElements);
      }
      keep_tiles_awake();
    }
  }

  void copy_q(const float* from, long token, long count, long size, Bfloat16* to,
              Bfloat16* turned) const {
    split_queries(from, token, count, size, q, to, turned);
  }
  void copy_gradient(const float* from, long token, long count, long size, Bfloat16* to,
                     Bfloat16* turned) const {
    split_queries(from, token, count, size, gradient, to, turned);
  }

  template <Pairing kPairing>
  static void pack(const View& from, long depth, long count, int exponent, Bfloat16* to) {
    const Vec factor[kPanelVectors] = {broadcast(power_of(-exponent)),
                                       broadcast(power_of(-exponent))};
    for (long j = 0; j < count; j += kPanel, to += divide_up(depth, kTileDepth) * kStepElements) {
      split_columns<kPairing>(from.at(j, 0), depth, smaller(count - j, kPanel), factor, to);
      keep_tiles_awake();
    }
  }

  void pack_keys(const float* from, long token, long size, long count, Bfloat16* keys,
                 Bfloat16* key_rows) const {
    pack<Pairing::kNeighbours>({from, token, 1}, size, count, k, keys);
    pack<Pairing::kHalves>({from, 1, token}, count, size, k, key_rows);
  }
  void pack_values(const float* from, long token, long size, long count, Bfloat16* values) const {
    pack<Pairing::kNeighbours>({from, token, 1}, size, count, v, values);
  }

  static Bfloat16* slopes_at(Bfloat16* slopes, long begin) {
    return slopes + begin * kBlockHeight * kParts;
  }

  void slope(const StripQueries& queries, const StripScores& in, const StripSlopes& out) const {
    *is_beyond |= !split_slope_strip(queries, in, out);
  }

  static long key_of(long half, long column) { return half * kLanes + column; }

  template <bool kAdds, int kRowTiles>
  BESTOF_INLINE static void multiply(const Bfloat16* rows, long, const Bfloat16* panel, long depth,
                                     float* sums, long sums_stride) {
    NothingWaiting nothing;
    if constexpr (kAdds) {
      load_sums<kRowTiles>(sums, sums_stride);
    } else {
      clear_sums<kRowTiles>();
    }
    if constexpr (kRowTiles == 2) {
      add_parts(RowsInTiles{rows}, panel, depth / kTileDepth, nothing);
    } else {
      add_parts_of_one(RowsInTiles{rows}, panel, depth / kTileDepth, nothing);
    }
    store_sums<kRowTiles>(sums, sums_stride);
  }

 private:
  // Splits a step of up to 32 rows; `left` numbers of a row are left.
  static void split_step(const float* from, long token, long rows, long left, Vec factor,
                         Bfloat16* to) {
    const long low = smaller(left, kLanes), high = larger(smaller(left - kLanes, kLanes), 0);
    for (long i = 0; i < rows; ++i, from += token, to += kTileDepth)
      store_parts(to, split_row(load_first(from, low) * factor,
                                high > 0 ? load_first(from + kLanes, high) * factor : Vec{}));
    for (long i = rows; i < kBlockHeight; ++i, to += kTileDepth) store_parts(to, {});
  }

  // Transposes each part of a step.
  static void turn_step(const Bfloat16* from, Bfloat16* to) {
    for (long part = 0; part < kParts; ++part) {
      for (long half = 0; half < 2; ++half) {
        Vec pairs[kLanes];
#pragma GCC unroll 16
        for (long i = 0; i < kLanes; ++i) {
          const Bfloat16* row = from + 2 * i * kTileDepth + half * kLanes;
          pairs[i] = reinterpret_cast<Vec>(load_bits(row) | (load_bits(row + kTileDepth) << 16));
        }
        store_turned(pairs, to + half * kLanes * kTileDepth, kTileDepth);
      }
      from += kPairElements;
      to += kPairElements;
    }
  }
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
