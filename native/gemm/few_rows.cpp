// Results of at most 16 rows, or columns. All of the other operand is read once, where it lies: the
// speed of memory sets the pace. Below, `rows` are the few and `columns` are the many.
#include <omp.h>

#include "conv/operands.h"
#include "gemm/algorithms.h"
#include "gemm/dots.h"
#include "gemm/orientation.h"
#include "gemm/sweep.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

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

struct Scratch {
  long rows, thread;  // floats of the copied rows of a matrix, and of a thread
};

Scratch scratch_of(const Orientation& o, int threads) {
  const Way way = way_of(o);
  const long gathered = way == Way::kGather ? kPanel * round_up(o.depth, 16) : 0;
  const long chunk = way == Way::kGather ? kPanel : chunk_of(o.rows, o.columns, threads);
  const long sums = way == Way::kDots ? 0 : round_up(o.rows * sums_stride(chunk), 16);
  return {o.rows * row_stride<float>(o.depth), gathered + sums};
}

long scratch_floats(const Product& p, bool, int threads) {
  const Orientation o = few_rows_of(p);
  const Scratch s = scratch_of(o, threads);
  return o.batch * s.rows + threads * s.thread;
}

void copy_few_rows(const Orientation& o, const View& rows, float* to) {
  const bool by_depth = way_of(o) != Way::kDots;
  const long stride = row_stride<float>(o.depth);
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
  const long stride = row_stride<float>(o.depth);
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
      Target<float> target = {floats(call.c) + at, o.c_stride(), o.turned(), nullptr,
                              call.bias,           o.swapped,    nullptr,    call.activation,
                              call.slope};
      if (call.residual) target.added = floats(call.residual) + at;
      if (call.factor) target.factor = floats(call.factor) + at;
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
