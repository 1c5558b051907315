// Results of at most 16 rows, or columns. All of the other operand is read once, where it lies: the
// speed of memory sets the pace. Below, `rows` are the few and `columns` are the many.
#include <omp.h>

#include "conv/operands.h"
#include "gemm/algorithms.h"
#include "gemm/orientation.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr bool kManyRegisters = true;
#else
constexpr bool kManyRegisters = false;
#endif

// Floats from here to the line that is asked for in advance.
constexpr long kFetchAhead = 128;

// --- Columns that lie side by side: kSteps steps of depth at a time are swept along a chunk of
// columns, whose sums lie in a buffer.

constexpr int kSteps = 8;
// Floats of the sums of a chunk, which lie in L2. If they fit into L1, memory is read in pieces so
// short that 8 rows take 1.4 times as long (4096 x 4096, Cascade Lake).
constexpr long kChunkSums = 32768;
// Sums that are kept in registers: of a vector of columns, or two if the rows are few.
constexpr int kRowsAtOnce = kManyRegisters ? 24 : 10;

long chunk_of(long rows, long columns, long threads) {
  const long share = round_up(divide_up(columns, threads), 64);
  return smaller(smaller(share, round_up(kChunkSums / rows, 64)), round_up(columns, 64));
}

// The distance of rows of sums: not a power of two, so that they fall into different sets.
long sums_stride(long chunk) {
  return chunk + 80;
}

// sums[R x V vectors] += x[kSteps x R]^T columns[kSteps x V vectors]. Unless `next` is 0, asks for
// what lies so many floats behind these columns.
template <int R, int V>
BESTOF_INLINE void add_steps(const float* x, long x_stride, const float* const* columns, long j,
                             float* sums, long stride, long next) {
  // Otherwise GCC keeps each x as a vector on the stack.
  if (R > 4) asm volatile("" : : : "memory");
  Vec sum[R][V];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) sum[i][v] = load(sums + i * stride + v * kLanes);
  }
#pragma GCC unroll 8
  for (int k = 0; k < kSteps; ++k) {
    Vec column[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      column[v] = load(columns[k] + j + v * kLanes);
      if (next) __builtin_prefetch(columns[k] + j + v * kLanes + next, 0, 2);
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const Vec row = broadcast(x[k * x_stride + i]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[i][v] += row * column[v];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) store(sums + i * stride + v * kLanes, sum[i][v]);
  }
}

// Adds `depth` steps of `count` columns to the sums of R rows; x is [depth][R].
template <int R>
void sweep(const float* x, const View& columns, long depth, long count, float* sums, long stride) {
  constexpr int kFirst = R <= kRowsAtOnce ? R : (R + 1) / 2;
  constexpr int kVectors = 2 * kFirst <= kRowsAtOnce - 2 ? 2 : 1;
  constexpr long kWidth = kVectors * kLanes;
  const long whole = count / kWidth * kWidth;
  for (long k = 0; k < depth; k += kSteps) {
    const long steps = smaller(depth - k, kSteps);
    float factors[kSteps * R];
    const float* at[kSteps];
    for (long q = 0; q < kSteps; ++q) {
      at[q] = columns.data + (q < steps ? k + q : k) * columns.along;
      for (int i = 0; i < R; ++i) factors[q * R + i] = x[(q < steps ? k + q : k) * R + i];
    }
    if (steps == kSteps) {
      for (long j = 0; j < whole; j += kWidth) {
        add_steps<kFirst, kVectors>(factors, R, at, j, sums + j, stride, kSteps * columns.along);
        if constexpr (R > kFirst)
          add_steps<R - kFirst, kVectors>(factors + kFirst, R, at, j, sums + kFirst * stride + j,
                                          stride, 0);
      }
    }
    // The rest, column by column; steps that are missing are left out, for zero times infinity is
    // not zero.
    for (long q = 0; q < steps; ++q) {
      for (long j = steps == kSteps ? whole : 0; j < count; j += kLanes) {
        const long n = smaller(count - j, kLanes);
        const Vec column = load_first(at[q] + j, n);
        for (int i = 0; i < R; ++i) {
          float* sum = sums + i * stride + j;
          store(sum, load(sum) + broadcast(factors[q * R + i]) * column);
        }
      }
    }
  }
}

template <int R>
void sweep_of(long rows, const float* x, const View& columns, long depth, long count, float* sums,
              long stride) {
  if constexpr (R > 0) {
    if (rows == R) return sweep<R>(x, columns, depth, count, sums, stride);
    sweep_of<R - 1>(rows, x, columns, depth, count, sums, stride);
  }
}

// --- Columns whose depth is contiguous: dot products of kColumnsAtOnce of them with kPair rows.
// More rows pass a chunk of those columns while it is in L1; their sums are parked in between.

constexpr int kColumnsAtOnce = kManyRegisters ? 8 : 4;
constexpr int kPair = 2;
constexpr long kDepthChunk = 512;

struct ColumnFetch {
  const float* from;  // what is asked for while the first element of the chunk is used
  long first, last;   // of these columns
};

__attribute__((noinline)) inline Vec load_rest(const float* p, long n) {
  return load_first(p, n);
}

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
  long k = 0;
  for (; k + kLanes <= depth; k += kLanes) {
    Vec column[kColumnsAtOnce];
#pragma GCC unroll 8
    for (int j = 0; j < kColumnsAtOnce; ++j)
      column[j] = load(columns.data + j * columns.across + k);
    for (long j = fetch.first; j < fetch.last; ++j)
      __builtin_prefetch(fetch.from + j * columns.across + k, 0, 2);
#pragma GCC unroll 2
    for (int i = 0; i < R; ++i) {
      const Vec row = load(x + i * x_stride + k);
#pragma GCC unroll 8
      for (int j = 0; j < kColumnsAtOnce; ++j) sum[i][j] += row * column[j];
    }
  }
  if (k < depth) {
    for (int j = 0; j < kColumnsAtOnce; ++j) {
      const Vec column = load_rest(columns.data + j * columns.across + k, depth - k);
      for (int i = 0; i < R; ++i) sum[i][j] += load_rest(x + i * x_stride + k, depth - k) * column;
    }
  }
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
void dot_columns(const float* x, long x_stride, long rows, const View& columns, long depth,
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

// --- Both.

// How the few rows are copied: by depth for a sweep, else row by row.
enum class Way { kSweep, kGather, kDots };

// Columns that lie anyhow are gathered, kPanel at a time, and swept.
Way way_of(const Orientation& o) {
  if (o.column_side.across == 1) return Way::kSweep;
  return o.column_side.along == 1 ? Way::kDots : Way::kGather;
}

Orientation few_rows_of(const Product& p) {
  const Orientation given = as_given(p);
  return p.rows <= kFewRowsMost ? given : swapped(given);
}

long row_stride(long depth) {
  return (divide_up(depth, 16) | 1) * 16;
}

struct Scratch {
  long rows, thread;  // floats of the copied rows of a matrix, and of a thread
};

Scratch scratch_of(const Orientation& o, int threads) {
  const Way way = way_of(o);
  const long gathered = way == Way::kGather ? kPanel * round_up(o.depth, 16) : 0;
  const long chunk = way == Way::kGather ? kPanel : chunk_of(o.rows, o.columns, threads);
  const long sums = way == Way::kDots ? 0 : round_up(o.rows * sums_stride(chunk), 16);
  return {o.rows * row_stride(o.depth), gathered + sums};
}

long scratch_floats(const Product& p, bool, int threads) {
  const Orientation o = few_rows_of(p);
  const Scratch s = scratch_of(o, threads);
  return o.batch * s.rows + threads * s.thread;
}

void copy_few_rows(const Orientation& o, const View& rows, float* to) {
  const bool by_depth = way_of(o) != Way::kDots;
  const long stride = row_stride(o.depth);
  for (long i = 0; i < o.rows; ++i) {
    for (long k = 0; k < o.depth; ++k)
      to[by_depth ? k * o.rows + i : i * stride + k] = rows.data[i * rows.across + k * rows.along];
  }
}

// Columns [first, last) by sweeps.
void sweep_columns(const Orientation& o, const float* x, View columns, long first, long last,
                   const Target<float>& target, float* buffer) {
  float* sums = buffer;
  columns = columns.at(first, 0);
  if (way_of(o) == Way::kGather) {
    pack_columns(columns, o.depth, last - first, buffer);
    columns = {buffer, 1, kPanel};
    sums += kPanel * round_up(o.depth, 16);
  }
  const long stride = sums_stride(round_up(last - first, kLanes));
  for (long i = 0; i < o.rows * stride; ++i) sums[i] = 0.0f;
  sweep_of<kFewRowsMost>(o.rows, x, columns, o.depth, last - first, sums, stride);
  finish_stored(sums, stride, o.rows, last - first, target);
}

// Columns [first, last) by dot products.
void dot_all(const Orientation& o, const float* x, const View& columns, long first, long last,
             const Target<float>& target) {
  float results[kFewRowsMost * kColumnsAtOnce + kLanes];
  const long stride = row_stride(o.depth);
  for (long j = first; j < last; j += kColumnsAtOnce) {
    // The last columns overlap those before; a result that is written twice would be wrong where it
    // is its own residual.
    const long count = smaller(kColumnsAtOnce, last - j);
    const long from = larger(smaller(j, o.columns - kColumnsAtOnce), 0);
    if (o.columns >= kColumnsAtOnce) {
      dot_columns(x, stride, o.rows, columns.at(from, 0), o.depth, results);
    } else {
      View same = columns.at(j, 0);
      for (long c = 0; c < count; ++c) {
        float one[kFewRowsMost * kColumnsAtOnce + kLanes];
        View single = {same.data + c * same.across, 0, same.along};
        dot_columns(x, stride, o.rows, single, o.depth, one);
        for (long i = 0; i < o.rows; ++i) results[i * kColumnsAtOnce + c] = one[i * kColumnsAtOnce];
      }
    }
    const Target<float> to = target_at(target, 0, j - first);
    finish_stored(results + (o.columns >= kColumnsAtOnce ? j - from : 0), kColumnsAtOnce, o.rows,
                  count, to);
  }
}

void run(const Product& p, const ProductCall& call) {
  const Orientation o = few_rows_of(p);
  const Scratch s = scratch_of(o, call.threads);
  const float* row_data = floats(o.swapped ? call.b : call.a);
  const float* column_data = floats(o.swapped ? call.a : call.b);
  const Way way = way_of(o);
  const long dots =
      kColumnsAtOnce * larger(smaller(o.columns / (8L * kColumnsAtOnce * call.threads), 8), 1);
  const long chunk = way == Way::kDots     ? dots
                     : way == Way::kGather ? kPanel
                                           : chunk_of(o.rows, o.columns, call.threads);
  const long chunks = divide_up(o.columns, chunk);
#pragma omp parallel num_threads(call.threads)
  {
    float* buffer = call.scratch + o.batch * s.rows + omp_get_thread_num() * s.thread;
#pragma omp for schedule(static)
    for (long matrix = 0; matrix < o.batch; ++matrix) {
      const View rows = {row_data + matrix * o.row_batch, o.row_side.across, o.row_side.along};
      copy_few_rows(o, rows, call.scratch + matrix * s.rows);
    }
#pragma omp for schedule(dynamic, 1)
    for (long item = 0; item < o.batch * chunks; ++item) {
      const long matrix = item / chunks, first = item % chunks * chunk;
      const long last = smaller(first + chunk, o.columns);
      const View columns = {column_data + matrix * o.column_batch, o.column_side.across,
                            o.column_side.along};
      const float* x = call.scratch + matrix * s.rows;
      const long at = matrix * o.c_batch + first * o.c_column;
      Target<float> target = {floats(call.c) + at, o.c_stride(), o.turned(),      nullptr,
                              call.bias,           o.swapped,    call.activation, call.slope};
      if (call.residual) target.added = floats(call.residual) + at;
      if (call.bias && !o.swapped) target.bias += first;
      if (way == Way::kDots) {
        dot_all(o, x, columns, first, last, target);
      } else {
        sweep_columns(o, x, columns, first, last, target, buffer);
      }
    }
  }
}

}  // namespace

const ProductPass products::few_rows = {run, scratch_floats};

}  // namespace BESTOF_TARGET
}  // namespace bestof
