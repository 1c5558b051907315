// A few rows times columns whose depth is contiguous: dot products of kColumnsAtOnce columns with
// kPair rows. More rows pass a chunk of those columns while it is in L1; their sums are parked in
// between.
#pragma once
#include "gemm/algorithm.h"
#include "gemm/panels.h"
#include "simd/dot_block.h"

namespace bestof {
namespace BESTOF_TARGET {

// Floats from here to the line that is asked for in advance.
constexpr long kFetchAhead = 128;

constexpr int kColumnsAtOnce = kTileRows > 6 ? 8 : 4;
constexpr int kPair = 2;
constexpr long kDepthChunk = 512;

struct ColumnFetch {
  const float* from;  // what is asked for while the first element of the chunk is used
  long first, last;   // of these columns
};

// sums[R][kColumnsAtOnce] += x[R] . columns over `depth` elements, lane by lane.
template <int R>
BESTOF_INLINE void add_dots(const float* x, long x_stride, const View& columns, long depth,
                            Vec* sums, const ColumnFetch& fetch) {
  Vec sum[R][kColumnsAtOnce];
#pragma GCC unroll 2
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kColumnsAtOnce; ++j) sum[i][j] = sums[i * kColumnsAtOnce + j];
  }
  add_dot_block(x, x_stride, columns.data, columns.across, depth, sum,
                [&](long k) __attribute__((always_inline)) {
                  for (long j = fetch.first; j < fetch.last; ++j)
                    __builtin_prefetch(fetch.from + j * columns.across + k, 0, 2);
                });
#pragma GCC unroll 2
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kColumnsAtOnce; ++j) sums[i * kColumnsAtOnce + j] = sum[i][j];
  }
}

// Sums the lanes of `count` vectors.
inline void sum_lanes(const Vec* sums, long count, float* to) {
  for (long first = 0; first < count; first += kLanes) {
    Vec tile[kLanes];
#pragma GCC unroll 16
    for (long i = 0; i < kLanes; ++i) tile[i] = first + i < count ? sums[first + i] : Vec{};
    turn(tile);
    Vec sum = tile[0];
#pragma GCC unroll 16
    for (long i = 1; i < kLanes; ++i) sum += tile[i];
    store(to + first, sum);
  }
}

// The dot products of `rows` rows with kColumnsAtOnce columns, as [row][column].
inline void dot_columns(const float* x, long x_stride, long rows, const View& columns, long depth,
                        float* results) {
  Vec sums[kFewRowsMost * kColumnsAtOnce];
  for (Vec& sum : sums) sum = Vec{};
  const long groups = divide_up(rows, kPair);
  const long chunk = groups == 1 ? larger(depth, 1) : kDepthChunk;
  // Where the columns begin that each group asks for: two divisions for each chunk of each group
  // took a third of the time of 16 rows.
  long asked[kFewRowsMost / kPair + 1];
  for (long group = 0; group <= groups; ++group)
    asked[group] = part_begin(kColumnsAtOnce, groups, group);
  for (long k = 0; k < depth; k += chunk) {
    const long steps = smaller(chunk, depth - k);
    const View part = columns.at(0, k);
    // The next chunk is asked for evenly over the groups of rows.
    const float* next = groups == 1         ? part.data + kFetchAhead
                        : k + chunk < depth ? part.data + chunk
                                            : columns.data + kColumnsAtOnce * columns.across;
    for (long group = 0; group < groups; ++group) {
      const ColumnFetch fetch = {next, asked[group], asked[group + 1]};
      const float* row = x + group * kPair * x_stride + k;
      Vec* parked = sums + group * kPair * kColumnsAtOnce;
      if (rows - group * kPair >= kPair) {
        add_dots<kPair>(row, x_stride, part, steps, parked, fetch);
      } else {
        add_dots<1>(row, x_stride, part, steps, parked, fetch);
      }
    }
  }
  sum_lanes(sums, rows * kColumnsAtOnce, results);
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
