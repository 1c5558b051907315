// The product of rows and a panel of which both are split into three parts of bfloat16, by the tile
// registers of AMX. Two tiles of rows by two tiles of columns take six products a step of depth:
// 24 of tiles for 12 loads, where plain bfloat16 takes a load a product. A core of a Xeon with AMX
// has 640 GFLOP/s of float32 for six products of zeros, and 500 for those of random numbers, from
// L1 and L2 alike; vectors have 250. Whole products reach 370 to 430, and 480 without splitting.
#pragma once
#include "gemm/amx_block.h"
#include "gemm/coming_panel.h"

namespace bestof {
namespace BESTOF_TARGET {

// Rows of which each step is whole tiles, as `split_rows` writes them. Loads tile 0 or 1 of one
// part of the step.
struct RowsInTiles {
  const Bfloat16* rows;

  template <int kTile>
  BESTOF_INLINE void load(int part) const {
    load_tile<4 + kTile>(rows + part * kPairElements + kTile * kTileElements,
                         kTileDepth * sizeof(Bfloat16));
  }
  BESTOF_INLINE void advance() { rows += kStepElements; }
};

// Loads tile 0 or 1 of the columns of one part of a step.
template <int kTile>
BESTOF_INLINE void load_columns(const Bfloat16* columns) {
  load_tile<6 + kTile>(columns + kTile * kTileElements, kTileDepth * sizeof(Bfloat16));
}
template <int kRow, int kColumn>
BESTOF_INLINE void multiply_loaded() {
  multiply_tiles<2 * kRow + kColumn, 4 + kRow, 6 + kColumn>();
}

// Multiplies four tiles, and loads two others into their place as soon as they are free. Loads
// behind all four took 1.07 to 1.1 times as long (operands in L2, nearly constant numbers).
template <class Rows>
BESTOF_INLINE void then_load_rows(const Rows& rows, int part) {
  multiply_loaded<0, 0>();
  multiply_loaded<0, 1>();
  rows.template load<0>(part);
  multiply_loaded<1, 0>();
  multiply_loaded<1, 1>();
  rows.template load<1>(part);
}
BESTOF_INLINE void then_load_columns(const Bfloat16* next) {
  multiply_loaded<0, 0>();
  multiply_loaded<1, 0>();
  load_columns<0>(next);
  multiply_loaded<0, 1>();
  multiply_loaded<1, 1>();
  load_columns<1>(next);
}

// The results of rows by one panel.
struct PanelResults {
  Target<float> target;
  long columns;

  // Results that are turned are turned 16 rows at a time.
  long height() const { return target.turned ? kTileHeight : 4; }
  void finish(const float* sums, long row, long count) const {
    finish_panel(sums, count, target_at(target, row, 0), columns);
  }
};

// Sums that wait to be finished. That is done piece by piece, while tiles multiply the next ones:
// tiles and vectors then work side by side. results.finish(sums, row, count) finishes the sums of
// `count` rows from `row` on; results.height() is the count that suits it.
template <class Results>
class WaitingSums {
 public:
  // Where the next sums are to be stored: [kBlockHeight][kPanel].
  float* free() const { return buffers_ + (1 - used_) * kBlockHeight * kPanel; }

  // buffers: [2][kBlockHeight][kPanel].
  explicit WaitingSums(float* buffers) : buffers_(buffers) {}

  // Takes what was stored at free(). What was taken before must be finished.
  void take(long rows, const Results& results) {
    used_ = 1 - used_;
    rows_ = rows;
    results_ = results;
    done_ = 0;
  }

  // Finishes the share of step `step` of `steps`.
  void finish(long step, long steps) {
    if (done_ >= rows_) return;
    const long height = results_.height();
    const long end = smaller(part_begin(kBlockHeight / height, steps, step + 1) * height, rows_);
    if (done_ >= end) return;
    results_.finish(buffers_ + used_ * kBlockHeight * kPanel + done_ * kPanel, done_, end - done_);
    done_ = end;
  }
  void finish_all() { finish(0, 1); }

 private:
  float* buffers_;
  long used_ = 0, rows_ = 0, done_ = 0;
  Results results_ = {};
};

// What vectors do while tiles multiply: they finish sums once a step, and split the next panel
// between products.
struct SideWork {
  WaitingSums<PanelResults> sums;
  ComingPanel panel;

  BESTOF_INLINE void finish(long step, long steps) { sums.finish(step, steps); }
  BESTOF_INLINE void proceed() { panel.proceed(); }
};

// How often a step proceeds with other work.
constexpr long kCallsOfStep = 6;

// Adds `steps` steps to the sums in the tiles 0 to 3: of each step the smallest products first.
// Between two products, either the rows or the columns stay. waiting: work for vectors,
// of which finish(step, steps) and proceed() do a piece each.
template <class Rows, class Waiting>
BESTOF_INLINE void add_parts(Rows rows, const Bfloat16* columns, long steps, Waiting& waiting) {
  for (long step = 0; step < steps; ++step, rows.advance(), columns += kStepElements) {
    waiting.finish(step, steps);
    rows.template load<0>(0);
    load_columns<0>(columns + 2 * kPairElements);
    rows.template load<1>(0);
    load_columns<1>(columns + 2 * kPairElements);
    then_load_columns(columns + kPairElements);
    waiting.proceed();
    then_load_rows(rows, 1);
    waiting.proceed();
    then_load_columns(columns);
    waiting.proceed();
    then_load_rows(rows, 2);
    waiting.proceed();
    then_load_rows(rows, 0);
    waiting.proceed();
    multiply_loaded<0, 0>();
    multiply_loaded<0, 1>();
    multiply_loaded<1, 0>();
    multiply_loaded<1, 1>();
    waiting.proceed();
  }
}

// The same of one tile of rows, with the sums in the tiles 0 and 1.
template <class Rows, class Waiting>
BESTOF_INLINE void add_parts_of_one(Rows rows, const Bfloat16* columns, long steps,
                                    Waiting& waiting) {
  constexpr int kOrder[][2] = {{0, 2}, {0, 1}, {1, 1}, {1, 0}, {2, 0}, {0, 0}};
  for (long step = 0; step < steps; ++step, rows.advance(), columns += kStepElements) {
    waiting.finish(step, steps);
#pragma GCC unroll 6
    for (const auto& part : kOrder) {
      rows.template load<0>(part[0]);
      load_columns<0>(columns + part[1] * kPairElements);
      multiply_loaded<0, 0>();
      load_columns<1>(columns + part[1] * kPairElements);
      multiply_loaded<0, 1>();
      waiting.proceed();
    }
  }
}

// Multiplies the sums of rows and columns by the powers of two that these were divided by.
BESTOF_INLINE void scale_sums(float* sums, const ScaleExponent* rows, long count,
                              const PanelScale& columns) {
  for (long i = 0; i < count; ++i, sums += kPanel) {
    const Vec exponent = broadcast(rows[i]);
#pragma GCC unroll 2
    for (int j = 0; j < kPanelVectors; ++j) {
      float* at = sums + j * kLanes;
      store(at, times_power(load(at), exponent + columns.exponent[j]));
    }
  }
}

// The operands that replace what has no parts: the rows as they lie, and the panel as float32,
// which is null if nothing must be replaced.
struct WholeOperands {
  View rows;
  const float* panel;
  float* gathered;  // scratch, [kTileHeight][kGatheredStride]
};

// Replaces the sums of `n` <= 16 rows from `row` on by those that vectors compute. Eight rows at a
// time take about as long as one.
inline void replace_sums(const WholeOperands& whole, const ScaleExponent* scale,
                         const PanelScale& columns, long row, long n, long depth, float* sums) {
  constexpr int kTogether = 8;
  bool gathered = false;
  for (long first = 0; first < n; first += kTogether) {
    const long some = smaller(n - first, static_cast<long>(kTogether));
    bool needed = columns.incomplete;
    for (long i = first; i < first + some; ++i) needed |= scale[row + i] == kNotSplit;
    if (!needed) continue;
    if (!gathered) gather_rows(whole.rows.at(row, 0), depth, n, whole.gathered);
    gathered = true;
    Accumulator<kTogether> acc;
    clear(acc);
    accumulate<0>(acc, whole.gathered + first * kGatheredStride, kGatheredStride, depth,
                  whole.panel, whole.panel);
    for (long i = 0; i < some; ++i) {
      const bool all = scale[row + first + i] == kNotSplit;
      for (int j = 0; j < kPanelVectors; ++j) {
        float* at = sums + (first + i) * kPanel + j * kLanes;
        const auto replaced = static_cast<__mmask16>(all ? ~0 : columns.whole[j]);
        store(at, blended(replaced, load(at), acc.v[i][j]));
      }
    }
  }
}

// Multiplies `count` split rows by one panel. The last results wait to be finished.
inline void multiply_parts(const SplitRows& rows, long count, const Bfloat16* panel, long depth,
                           long columns, const Target<float>& target, const PanelScale& scale,
                           const WholeOperands& whole, SideWork& work) {
  WaitingSums<PanelResults>& waiting = work.sums;
  const long steps = divide_up(depth, kTileDepth);
  for (long row = 0; row < count; row += kBlockHeight) {
    const Bfloat16* from = rows.parts + row / kBlockHeight * steps * kStepElements;
    const long n = smaller(count - row, kBlockHeight);
    float* sums = waiting.free();
    if (n > kTileHeight) {
      clear_sums<2>();
      add_parts(RowsInTiles{from}, panel, steps, work);
      store_sums<2>(sums, kPanel);
    } else {
      clear_sums<1>();
      add_parts_of_one(RowsInTiles{from}, panel, steps, work);
      store_sums<1>(sums, kPanel);
    }
    if (steps == 0) waiting.finish_all();
    if (rows.scaled || scale.scaled) scale_sums(sums, rows.scale + row, n, scale);
    for (long i = 0; whole.panel && i < n; i += kTileHeight) {
      replace_sums(whole, rows.scale, scale, row + i, smaller(n - i, kTileHeight), depth,
                   sums + i * kPanel);
    }
    waiting.take(n, {target_at(target, row, 0), columns});
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
