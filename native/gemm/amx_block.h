// The product of a block of rows and a panel of bfloat16 pairs, by the tile registers of AMX. Two
// tiles of rows by two tiles of columns stay in registers: each load then serves two products.
//
// Tiles come from L1 or L2. From L2 come half as many bytes as the products could take, so depth is
// cut into chunks: a chunk of the panel stays in L1 while all rows of the block pass. Between
// chunks, the sums wait in memory. On one core of a Xeon, a loop over operands in L2 reaches 2.4 to
// 2.6 TFLOP/s in chunks of 256 elements, and 1.8 to 2.2 in one chunk (768 to 3,072 elements, peak
// 3.8). Whole products, with weights from L3, reach 1.2 to 1.7.
#pragma once
#include "gemm/product.h"
#include "gemm/tile.h"
#include "simd/isa.h"
#include "simd/tiles.h"

namespace bestof {
namespace BESTOF_TARGET {

static_assert(kPanel == 2 * kTileColumns, "a panel is two tiles wide");

// Panels and copied rows are padded with zeros to a multiple of this depth.
constexpr long kDepthStep = kTileDepth;

// Steps of a chunk, and those that are not cut.
constexpr long kChunkSteps = 8, kUncutSteps = 12;

// Rows of a block: copied, they take up to half of L2. Threads share the larger side of the
// product, so that each reads the least: with 128 rows the weights are most of what is read.
inline long block_rows(const Product& p, int threads) {
  const long fitting = larger(level2_bytes() / 4 / row_stride(p.depth) / kBlockHeight, 1);
  const long share = p.rows > p.columns ? divide_up(p.rows, static_cast<long>(threads)) : p.rows;
  return smaller(fitting * kBlockHeight, round_up(larger(share, 1), kBlockHeight));
}

// Floats of the sums of a block between chunks.
BESTOF_INLINE long sums_floats(long rows) {
  return rows * kPanel;
}

// Where the steps of depth of a row lie, in elements: one behind the other, or anywhere. kFetches:
// whether the next chunk of the panel is asked for while this one is multiplied.
struct StepsInLine {
  static constexpr bool kFetches = true;
  BESTOF_INLINE long operator[](long step) const { return step * kTileDepth; }
};
struct StepsAnywhere {
  static constexpr bool kFetches = false;
  const long* offset;
  BESTOF_INLINE long operator[](long step) const { return offset[step]; }
};

// What is asked for, into L2, while tiles are multiplied: `lines` cache lines in each step, from
// `from` on.
struct FetchLines {
  const Bfloat16* from;
  long lines;
};

// Adds the steps [first, last) of depth to the sums in the tiles 0 to 3, or 0 and 1.
template <int kRowTiles, class Steps>
BESTOF_INLINE void add_steps(const Bfloat16* row, long stride, const Bfloat16* panel,
                             const Steps& offset, long first, long last, FetchLines fetch) {
  constexpr long kPairBytes = kPanel * 2 * sizeof(Bfloat16);
  const Bfloat16* below = row + kTileHeight * stride;
  const long row_bytes = stride * sizeof(Bfloat16);
  panel += first * kTileDepth * kPanel;
  for (long step = first; step < last; ++step) {
    if constexpr (Steps::kFetches) {
      for (long line = 0; line < fetch.lines; ++line, fetch.from += kTileDepth)
        __builtin_prefetch(fetch.from, 0, 2);
    }
    load_tile<4>(row + offset[step], row_bytes);
    load_tile<6>(panel, kPairBytes);
    multiply_tiles<0, 4, 6>();
    load_tile<7>(panel + 2 * kTileColumns, kPairBytes);
    multiply_tiles<1, 4, 7>();
    if constexpr (kRowTiles == 2) {
      load_tile<5>(below + offset[step], row_bytes);
      multiply_tiles<2, 5, 6>();
      multiply_tiles<3, 5, 7>();
    }
    panel += kTileDepth * kPanel;
  }
}

// Clears the tiles that `add_steps` adds to.
template <int kRowTiles>
BESTOF_INLINE void clear_sums() {
  clear_tile<0>();
  clear_tile<1>();
  if constexpr (kRowTiles == 2) {
    clear_tile<2>();
    clear_tile<3>();
  }
}

// Loads these tiles. Rows of sums lie `stride` apart.
template <int kRowTiles>
BESTOF_INLINE void load_sums(const float* sums, long stride) {
  const long bytes = stride * sizeof(float);
  load_tile<0>(sums, bytes);
  load_tile<1>(sums + kTileColumns, bytes);
  if constexpr (kRowTiles == 2) {
    load_tile<2>(sums + kTileHeight * stride, bytes);
    load_tile<3>(sums + kTileHeight * stride + kTileColumns, bytes);
  }
}

template <int kRowTiles>
BESTOF_INLINE void store_sums(float* sums, long stride) {
  const long bytes = stride * sizeof(float);
  store_tile<0>(sums, bytes);
  store_tile<1>(sums + kTileColumns, bytes);
  if constexpr (kRowTiles == 2) {
    store_tile<2>(sums + kTileHeight * stride, bytes);
    store_tile<3>(sums + kTileHeight * stride + kTileColumns, bytes);
  }
}

// sums[kRowTiles * 16, kPanel] (+)= rows by the steps [first, last) of a panel.
template <int kRowTiles, class Steps>
BESTOF_INLINE void add_tile(const Bfloat16* rows, long stride, const Bfloat16* panel,
                            const Steps& offset, long first, long last, const FetchLines& fetch,
                            float* sums) {
  if (first == 0) {
    clear_sums<kRowTiles>();
  } else {
    load_sums<kRowTiles>(sums, kPanel);
  }
  add_steps<kRowTiles>(rows, stride, panel, offset, first, last, fetch);
  store_sums<kRowTiles>(sums, kPanel);
}

// What the multiplication of the rows from `row` on by the steps [first, last) asks for: its share
// of what lies behind these steps, which is the next chunk or the next panel. Weights that come
// from L3 then take 0.75 to 1 of the time (3,072 x 768: 0.79). One block of rows reads
// `kChunkSteps` ahead.
inline FetchLines fetch_behind(const Bfloat16* panel, long first, long last, long row, long count) {
  constexpr long kStepLines = 2 * kTileHeight;
  const long lines = divide_up(kStepLines, divide_up(count, kBlockHeight));
  const long behind = count > kBlockHeight ? last : first + kChunkSteps;
  const long share = row / kBlockHeight * (last - first) * lines;
  return {panel + (behind * kStepLines + share) * kTileDepth, lines};
}

// Multiplies `count` rows by one panel, of `steps` steps of depth. Calls finish(sums, row, n) with
// the sums of `n` rows from `row` on, kPanel apart. Chunks take about `chunk_steps` steps. Rows up
// to the next multiple of 16 are read as well. sums: scratch, [count rounded up to 32, kPanel].
template <class Steps, class Finish>
BESTOF_INLINE void multiply_steps(const Bfloat16* rows, long stride, long count,
                                  const Bfloat16* panel, const Steps& offset, long steps,
                                  long chunk_steps, float* sums, const Finish& finish) {
  const bool cut = count > kBlockHeight && steps > kUncutSteps;
  const long chunks = cut ? divide_up(steps, chunk_steps) : 1;
  for (long chunk = 0; chunk < chunks; ++chunk) {
    const long first = part_begin(steps, chunks, chunk);
    const long last = part_begin(steps, chunks, chunk + 1);
    for (long row = 0; row < count; row += kBlockHeight) {
      const Bfloat16* from = rows + row * stride;
      const FetchLines fetch = fetch_behind(panel, first, last, row, count);
      float* to = sums + (cut ? row * kPanel : 0);
      if (count - row > kTileHeight) {
        add_tile<2>(from, stride, panel, offset, first, last, fetch, to);
      } else {
        add_tile<1>(from, stride, panel, offset, first, last, fetch, to);
      }
      if (chunk + 1 == chunks) finish(to, row, smaller(count - row, kBlockHeight));
    }
  }
}

// Finishes rows x columns sums that were stored kPanel apart. A row of a panel of bfloat16 is one
// cache line, and is stored at once.
template <class Out>
inline void finish_panel(const float* sums, long rows, const Target<Out>& t, long columns) {
  return finish_sums(sums, rows, t, columns);
}

inline void finish_panel(const float* sums, long rows, const Target<Bfloat16>& t, long columns) {
  if (!is_plain(t, kPanel)) return finish_sums(sums, rows, t, columns);
  const Bounds bounds(t.activation);
  const long some = smaller(columns, kLanes), others = columns - some;
  const auto wanted = static_cast<__mmask32>((1ul << columns) - 1);
  const Vec first_bias = t.bias ? load_first(t.bias, some) : Vec{};
  const Vec second_bias = t.bias ? load_first(t.bias + kLanes, others) : Vec{};
  const Bfloat16* added = t.added;
  Bfloat16* to = t.c;
  for (long i = 0; i < rows; ++i, to += t.stride, sums += kPanel) {
    Vec first = load(sums) + first_bias, second = load(sums + kLanes) + second_bias;
    if (added) {
      first += load_first(added, some);
      second += load_first(added + kLanes, others);
      added += t.stride;
    }
    store_two(to, bounds(first), bounds(second), wanted);
  }
}

// Multiplies `count` copied rows by one panel, and finishes the results.
template <class Out>
inline void multiply_block(const Bfloat16* rows, long stride, long count, const Bfloat16* panel,
                           long depth, long columns, const Target<Out>& target, float* sums) {
  multiply_steps(rows, stride, count, panel, StepsInLine{}, divide_up(depth, kDepthStep),
                 kChunkSteps, sums, [&](const float* from, long row, long n) {
                   finish_panel(from, n, target_at(target, row, 0), columns);
                 });
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
