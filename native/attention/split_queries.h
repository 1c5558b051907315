// Attention of many queries of float32 by tile registers, at the accuracy of float32: queries,
// keys, values and weights are sums of three numbers of bfloat16 (gemm/bfloat16_parts.h), and each
// product is six products of parts. Keys and values are split block by block; rows of queries, two
// tiles high, pass over them.
//
// Three blocks of queries are on their way: while tiles multiply one by keys and the weights of
// another by values, vectors compute the weights of the one between.
//
// What cannot be split is multiplied by vectors: a query by all keys, all queries by a key, and all
// weights by one column of the values of a block. So the bits of a result depend neither on a NaN
// that stands beside it nor on the number of threads. Only values may reach results that a causal
// mask hides them from: NaN times a weight of 0 is NaN in the other rows of a block of 32.
#pragma once
#include "attention/score_tile.h"
#include "attention/softmax.h"
#include "attention/split_layout.h"
#include "attention/split_weights.h"
#include "conv/operands.h"
#include "gemm/parts_block.h"

namespace bestof {
namespace BESTOF_TARGET {

// Queries, with the scale, and keys stay below 2^51. Sums of their products are then finite,
// although parts may be of either sign, and what tiles take for zero changes a score by less than
// 2^-60.
constexpr unsigned kMostQuery = kExponentOfOne + 50;
constexpr ColumnLimits kKeyLimits = {0, kExponentOfOne + 50};

// The largest value of a column.
constexpr ColumnLimits kValueLimits = {kExponentOfOne - 60, kExponentOfOne + 40};

// A block of rows of queries, and the keys [block, stop) that they meet.
struct SplitRowBlock {
  long first = 0, rows = 0, block = 0, stop = 0;
  bool is_last = false;  // of the blocks of keys that these rows see
  float* scores = nullptr;
  Bfloat16* weights = nullptr;
};

// Queries [begin, end) of one head.
struct SplitQueries {
  const Attention& p;
  const AttentionCall& call;
  long batch, head, begin, end;
  int raised;  // the power of two by which weights are multiplied
  const float *q, *k, *v;
  float* out;
  Bfloat16 *keys, *values, *queries, *weights;
  float *scores, *sums;
  RowState* states;
  ColumnSet *key_sets, *value_sets;  // of the columns that cannot be split, by panel
  float *row, *panel, *stash;        // of operands that cannot be split

  long depth() const { return round_up(p.size, kTileDepth); }
  long depth_steps() const { return divide_up(p.size, kTileDepth); }

  // Splits all keys of a block, even those that no query of the part sees: whether a column of
  // values can be split must not depend on the part.
  void split_block(long first, long count) const {
    const long steps = divide_up(count, kTileDepth);
    for (long j = 0; j < count; j += kPanel) {
      key_sets[j / kPanel] = pack_within<Pairing::kHalves>(
          {k + (first + j) * p.k.token, p.k.token, 1}, p.size, smaller(count - j, kPanel),
          kKeyLimits, keys + j / kPanel * depth_steps() * kStepElements);
    }
    for (long d = 0; d < p.size; d += kPanel) {
      value_sets[d / kPanel] = pack_within<Pairing::kHalves>(
          {v + first * p.v.token + d, 1, p.v.token}, count, smaller(p.size - d, kPanel),
          kValueLimits, values + d / kPanel * steps * kStepElements);
    }
  }

  // Blocks do not depend on the part, so neither do results.
  long block_begin(long at) const {
    return part_begin(divide_up(p.keys, kPanel), divide_up(p.keys, most_keys(p)), at) * kPanel;
  }

  // Splits rows, times the scale. Returns those that cannot be split.
  unsigned split_rows_of(long first, long rows) const {
    unsigned set = 0;
    const Vec scale = broadcast(p.scale);
    for (long i = 0; i < rows; ++i) {
      const float* from = q + (first + i) * p.q.token;
      Bfloat16* to = queries + i * kTileDepth;
      VecInt most = VecInt{};
      for (long d = 0; d < p.size; d += kTileDepth, to += kStepElements) {
        const long left = p.size - d;
        const Vec low = (left >= kLanes ? load(from + d) : load_first(from + d, left)) * scale;
        const Vec high =
            (left >= kTileDepth ? load(from + d + kLanes)
                                : load_first(from + d + kLanes, larger(left - kLanes, 0))) *
            scale;
        most = larger_magnitude(larger_magnitude(most, low), high);
        const Parts parts = cut_row(low, high);
#pragma GCC unroll 3
        for (int part = 0; part < kParts; ++part)
          store_line(to + part * kPairElements, parts.part[part]);
      }
      const auto limit = static_cast<int>((kMostQuery + 1) << 23);
      const __mmask16 beyond = _mm512_cmp_epi32_mask(reinterpret_cast<__m512i>(most),
                                                     _mm512_set1_epi32(limit), _MM_CMPINT_GE);
      set |= static_cast<unsigned>(beyond != 0) << i;
    }
    return set;
  }

  // Asks for the queries of the next block while weights and values leave memory idle.
  void fetch_queries(long first) const {
    const long last = smaller(first + kBlockHeight, end);
    for (long i = first; i < last; ++i) {
      for (long d = 0; d < p.size; d += kLanes) __builtin_prefetch(q + i * p.q.token + d, 0, 3);
    }
  }

  // Replaces scores of rows and of keys that cannot be split.
  __attribute__((noinline)) void replace_scores(const SplitRowBlock& of, unsigned whole_rows,
                                                long j) const {
    const ColumnSet whole = key_sets[j / kPanel];
    if (whole_rows == 0 && whole == 0) return;
    join_panel<Pairing::kHalves>(keys + j / kPanel * depth_steps() * kStepElements, p.size,
                                 unscaled_but(whole), panel);
    for (long i = 0; i < of.rows; ++i) {
      const ColumnSet replaced = whole_rows >> i & 1 ? ~0u : whole;
      if (replaced == 0) continue;
      copy_scaled(q + (of.first + i) * p.q.token, p.size, p.scale, row);
      Accumulator<1> acc;
      clear(acc);
      accumulate<0>(acc, row, 0, p.size, panel, panel);
      float* to = of.scores + i * kSplitStride + j;
      for (long c = 0; c < kPanel; ++c) {
        if (replaced >> c & 1) to[c] = acc.v[0][c / kLanes][c % kLanes];
      }
    }
  }

  template <class Meanwhile>
  void score(const SplitRowBlock& of, Meanwhile& meanwhile) const {
    const unsigned whole_rows = split_rows_of(of.first, of.rows);
    for (long j = 0; j < of.stop - of.block; j += kPanel) {
      const Bfloat16* columns = keys + j / kPanel * depth_steps() * kStepElements;
      if (of.rows > kTileHeight) {
        clear_sums<2>();
        add_parts(RowsInTiles{queries}, columns, depth_steps(), meanwhile);
        store_sums<2>(of.scores + j, kSplitStride);
      } else {
        clear_sums<1>();
        add_parts_of_one(RowsInTiles{queries}, columns, depth_steps(), meanwhile);
        store_sums<1>(of.scores + j, kSplitStride);
      }
      if (whole_rows != 0 || key_sets[j / kPanel] != 0) replace_scores(of, whole_rows, j);
    }
  }

  float* sums_of(const SplitRowBlock& of) const {
    return sums + (p.keys > most_keys(p) ? of.first - begin : 0) * depth();
  }

  // Makes the scores of row i complete. Returns the highest one so far.
  float mask(const SplitRowBlock& of, long i, long padded) const {
    float* some = of.scores + i * kSplitStride;
    const long seen = larger(0, smaller(of.stop, seen_by(p, of.first + i)) - of.block);
    if (call.mask || seen < padded)
      mask_row(some, padded, seen, mask_at(p, call.mask, batch, head, of.first + i, of.block));
    return highest_of(some, padded,
                      of.block == 0 ? -kInfinity : states[of.first - begin + i].highest);
  }

  // Takes the sum of the weights of row i over the score `base`, and multiplies the sums so far.
  void take(const SplitRowBlock& of, long i, float highest, float base, float sum) const {
    RowState& state = states[of.first - begin + i];
    if (of.block == 0) {
      state = {highest, sum};
      return;
    }
    const float before = weight_of(broadcast(state.highest - base))[0];
    state = {highest, state.sum * before + sum};
    if (before == 1.0f) return;
    float* so_far = sums_of(of) + i * depth();
    for (long d = 0; d < depth(); d += kLanes) store(so_far + d, load(so_far + d) * before);
  }

  // Replaces sums of columns of values that cannot be split. stash: the sums of before.
  __attribute__((noinline)) void replace_values(const SplitRowBlock& of, const Bfloat16* columns,
                                                ColumnSet whole, float* to) const {
    const long count = of.stop - of.block;
    join_panel<Pairing::kHalves>(columns, count, unscaled_but(whole), panel);
    for (long i = 0; i < of.rows; ++i, to += depth()) {
      join_row(of.weights + i * kTileDepth, count, row);
      Accumulator<1> acc;
      clear(acc);
      accumulate<0>(acc, row, 0, count, panel, panel);
      for (long c = 0; c < kPanel; ++c) {
        if ((whole >> c & 1) == 0) continue;
        const float so_far = of.block == 0 ? 0.0f : stash[i * kPanel + c];
        to[c] = so_far + acc.v[0][c / kLanes][c % kLanes];
      }
    }
  }

  // Adds weights times values to the sums.
  template <class Meanwhile>
  void add_values(const SplitRowBlock& of, long block_end, Meanwhile& meanwhile) const {
    const long steps = divide_up(block_end - of.block, kTileDepth);
    const long used = divide_up(of.stop - of.block, kTileDepth);
    for (long d = 0; d < p.size; d += kPanel) {
      const Bfloat16* columns = values + d / kPanel * steps * kStepElements;
      float* to = sums_of(of) + d;
      const ColumnSet whole = value_sets[d / kPanel];
      for (long i = 0; whole != 0 && of.block != 0 && i < of.rows; ++i)
        __builtin_memcpy(stash + i * kPanel, to + i * depth(), kPanel * sizeof(float));
      if (of.rows > kTileHeight) {
        of.block == 0 ? clear_sums<2>() : load_sums<2>(to, depth());
        add_parts(RowsInTiles{of.weights}, columns, used, meanwhile);
        store_sums<2>(to, depth());
      } else {
        of.block == 0 ? clear_sums<1>() : load_sums<1>(to, depth());
        add_parts_of_one(RowsInTiles{of.weights}, columns, used, meanwhile);
        store_sums<1>(to, depth());
      }
      if (whole != 0) replace_values(of, columns, whole, to);
    }
    if (of.is_last) finish(of);
  }

  void finish(const SplitRowBlock& of) const {
    const float* from = sums_of(of);
    for (long i = 0; i < of.rows; ++i, from += depth()) {
      RowState state = states[of.first - begin + i];
      const float factor = state.sum == 0.0f ? 1.0f : 1.0f / state.sum;
      copy_scaled(from, p.size, factor, out + (of.first + i) * p.out.token);
      if (!call.logsumexp) continue;
      if (raised != 0) state.sum *= 1.0f / kRaisedOne;
      call.logsumexp[offset(p.logsumexp, batch, head) + (of.first + i) * p.logsumexp.token] =
          logsumexp_of(state);
    }
  }

  // Replaces scores of a block of rows by weights, piece by piece, while tiles multiply others.
  class Weighing {
   public:
    // calls: how often proceed() will be called; then all pieces are done, or nearly.
    Weighing(const SplitQueries& queries, const SplitRowBlock& of, long calls)
        : queries_(queries),
          of_(of),
          padded_(round_up(of.stop - of.block, kTileDepth)),
          pieces_(of.rows * divide_up(padded_, kPiece)),
          calls_(calls) {}

    void finish(long, long) {}
    void proceed() {
      for (credit_ += pieces_; credit_ >= calls_; credit_ -= calls_) weigh_piece();
    }
    void finish_all() {
      while (row_ < of_.rows) weigh_piece();
    }

   private:
    // Scores of a piece.
    static constexpr long kPiece = 64;

    __attribute__((noinline)) void weigh_piece() {
      if (row_ >= of_.rows) return;
      if (at_ == 0) {
        highest_ = queries_.mask(of_, row_, padded_);
        // If all scores are -infinity, any finite number gives weights of 0.
        base_ = highest_ == -kInfinity ? 0.0f : highest_;
        sum_[0] = sum_[1] = Vec{};
      }
      const float* scores = of_.scores + row_ * kSplitStride + at_;
      Bfloat16* to = of_.weights + row_ * kTileDepth + at_ / kTileDepth * kStepElements;
      if (padded_ - at_ >= kPiece) {
        weigh_some<kPiece>(scores, to);
      } else {
        weigh_some<kTileDepth>(scores, to);
      }
      at_ += kPiece;
      if (at_ < padded_) return;
      queries_.take(of_, row_, highest_, base_, sum_lanes(sum_[0] + sum_[1]));
      at_ = 0;
      ++row_;
    }

    template <long kCount>
    BESTOF_INLINE void weigh_some(const float* scores, Bfloat16* to) {
#pragma GCC unroll 2
      for (long j = 0; j < kCount; j += kTileDepth, to += kStepElements) {
        const Vec first = raised_weight_of(load(scores + j) - base_, queries_.raised);
        const Vec second = raised_weight_of(load(scores + j + kLanes) - base_, queries_.raised);
        const Parts parts = cut_row(first, second);
#pragma GCC unroll 3
        for (int i = 0; i < kParts; ++i) store_line(to + i * kPairElements, parts.part[i]);
        sum_[0] += first;
        sum_[1] += second;
      }
    }

    const SplitQueries& queries_;
    const SplitRowBlock& of_;
    long padded_, pieces_, calls_, credit_ = 0, row_ = 0, at_ = 0;
    float highest_ = 0.0f, base_ = 0.0f;
    Vec sum_[2];
  };

  // Between products, vectors proceed so often in a step.
  static constexpr long kProceeding = 6;

  // How often vectors proceed while the scores or the results of a block of rows are computed.
  long score_calls(const SplitRowBlock& of) const {
    return of.rows == 0 ? 0 : divide_up(of.stop - of.block, kPanel) * depth_steps() * kProceeding;
  }

  void attend() const {
    const long seen = seen_by(p, end - 1);
    for (long at = 0, block = 0; block < seen; block = block_begin(++at)) {
      const long block_end = smaller(p.keys, block_begin(at + 1));
      split_block(block, block_end - block);
      attend_block(block, block_end);
    }
  }

  // Passes the keys of one block.
  void attend_block(long block, long block_end) const {
    SplitRowBlock scored, weighed;
    long turn = 0;
    for (long first = begin; first < end || scored.rows != 0; first += kBlockHeight, turn ^= 1) {
      SplitRowBlock next;
      if (first < end) {
        next.first = first;
        next.rows = smaller(end - first, kBlockHeight);
        next.block = block;
        // Rows of a tile see different numbers of keys: sums go as far as the last row sees.
        const long all = seen_by(p, first + next.rows - 1);
        next.stop = smaller(block_end, all);
        next.is_last = next.stop == all;
        next.scores = scores + turn * kBlockHeight * kSplitStride;
        next.weights = weights + turn * kBlockHeight * kSplitKeys * kParts;
        if (all <= block) continue;
      }
      Weighing weighing(*this, scored, larger(score_calls(next) + score_calls(weighed), 1));
      if (next.rows != 0) {
        score(next, weighing);
        fetch_queries(first + next.rows);
      }
      if (weighed.rows != 0) add_values(weighed, block_end, weighing);
      weighing.finish_all();
      weighed = scored;
      scored = next;
    }
    Weighing nothing(*this, scored, 1);
    if (weighed.rows != 0) add_values(weighed, block_end, nothing);
  }

  // Without keys every result is 0.
  void write_nothing() const {
    for (long i = begin; i < end; ++i) {
      for (long d = 0; d < p.size; ++d) out[i * p.out.token + d] = 0.0f;
      if (call.logsumexp)
        call.logsumexp[offset(p.logsumexp, batch, head) + i * p.logsumexp.token] = 0.0f;
    }
  }
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
