// Weight gradients as GEMM: dW[k][tap][c] is a sum over output pixels of dY[pixel][k] * X[pixel
// under tap][c].
#pragma once
#include "conv/forward_grid.h"
#include "gemm/outer_product.h"

namespace bestof {
namespace BESTOF_TARGET {

// Pixels of a block. x (or copied rows) and dY take about 768 KiB, so that both stay in L2 while
// all of dW passes.
BESTOF_INLINE long weight_pixels(long pixels, long row_floats, long out_channels) {
  const long wanted = smaller(larger(196608 / (row_floats + out_channels), 32), kChain);
  return divide_up(pixels, larger(divide_up(pixels, wanted), 1));
}

// --- In place: every thread owns a part of dW and reads all pixels. Nothing is reduced
// afterwards.

inline long weight_in_place_floats(const Problem& p) {
  const long pixels = p.batch * p.out_height * p.out_width, taps = p.kernel_height * p.kernel_width;
  const long block = weight_pixels(pixels, p.in_channels, p.out_channels);
  return tap_floats(p) + round_up(p.in_channels, 16) + row_block_floats(block, taps);
}

inline void run_weight_in_place(const Problem& p, const Call& call) {
  const long pixels = p.batch * p.out_height * p.out_width, taps = p.kernel_height * p.kernel_width;
  const long depth = p.in_channels / p.groups, outputs = p.out_channels / p.groups;
  const long block_pixels = weight_pixels(pixels, p.in_channels, p.out_channels);
  long* dy = reinterpret_cast<long*>(call.scratch);
  const Grid grid = forward_grid(p, dy, dy + p.kernel_height, p.out_channels);
  float* zeros = call.scratch + tap_floats(p);
  for (long i = 0; i < round_up(p.in_channels, 16); ++i) zeros[i] = 0.0f;
  RowBlock<float, const float> block = place_row_block<float, const float>(
      zeros + round_up(p.in_channels, 16), block_pixels, taps, depth, 0);
  const long wanted = divide_up(4L * call.threads, taps * p.groups);
  const long parts = smaller(divide_up(depth, kPanel), wanted);
  const long k_parts = smaller(divide_up(outputs, kTileRows), divide_up(wanted, parts));
#pragma omp parallel num_threads(call.threads)
  for (long first = 0; first < pixels; first += block_pixels) {
    const long count = smaller(block_pixels, pixels - first);
#pragma omp single
    point_rows<float>(grid, floats(call.second), floats(call.first), zeros, first, count, block);
#pragma omp for schedule(dynamic, 1)
    for (long item = 0; item < p.groups * taps * parts * k_parts; ++item) {
      const long group = item / (taps * parts * k_parts), tap = item / (parts * k_parts) % taps;
      const long part = item / k_parts % parts, k_part = item % k_parts;
      const long panels = divide_up(depth, kPanel);
      const long from = part_begin(panels, parts, part) * kPanel;
      const long to = smaller(part_begin(panels, parts, part + 1) * kPanel, depth);
      const long k0 = group * outputs + part_begin(outputs, k_parts, k_part);
      const long k1 = group * outputs + part_begin(outputs, k_parts, k_part + 1);
      const OuterRows rows = {block.row + tap * block.leading, nullptr, 0, group * depth + from};
      outer_product(floats(call.first) + first * p.out_channels + k0, p.out_channels, k1 - k0, rows,
                    to - from, count, first == 0,
                    floats(call.result) + (k0 * taps + tap) * depth + from, taps * depth);
    }
  }
}

// --- Copied rows (im2row): every thread adds blocks of pixels to a dW of its own; these are then
// added up. With few channels, all taps together make whole panels.

struct WeightCopies {
  long block, blocks, weights, pointers, rows, thread;
};

inline WeightCopies weight_copies(const Problem& p) {
  const long pixels = p.batch * p.out_height * p.out_width, taps = p.kernel_height * p.kernel_width;
  const long depth = taps * (p.in_channels / p.groups);
  WeightCopies c;
  c.block = weight_pixels(pixels, depth, p.out_channels);
  c.blocks = divide_up(pixels, c.block);
  c.weights = round_up(p.out_channels * depth, 16);
  c.pointers = row_block_floats(c.block, taps);
  c.rows = row_block_floats(c.block, 1) + c.block * copied_stride<float>(depth);
  c.thread = c.weights + c.pointers + c.rows;
  return c;
}

inline long weight_copied_floats(const Problem& p, int threads) {
  return tap_floats(p) + round_up(p.in_channels, 16) + threads * weight_copies(p).thread;
}

inline void run_weight_copied(const Problem& p, const Call& call) {
  const long pixels = p.batch * p.out_height * p.out_width, taps = p.kernel_height * p.kernel_width;
  const long inputs = p.in_channels / p.groups, outputs = p.out_channels / p.groups,
             depth = taps * inputs;
  const WeightCopies copies = weight_copies(p);
  long* dy = reinterpret_cast<long*>(call.scratch);
  const Grid grid = forward_grid(p, dy, dy + p.kernel_height, p.out_channels);
  float* zeros = call.scratch + tap_floats(p);
  for (long i = 0; i < round_up(p.in_channels, 16); ++i) zeros[i] = 0.0f;
  float* threads = zeros + round_up(p.in_channels, 16);
#pragma omp parallel num_threads(call.threads)
  {
    const int team = omp_get_num_threads();
    float* mine = threads + omp_get_thread_num() * copies.thread;
    for (long i = 0; i < copies.weights; ++i) mine[i] = 0.0f;
    RowBlock<float, const float> block =
        place_row_block<float, const float>(mine + copies.weights, copies.block, taps, inputs, 0);
#pragma omp for schedule(static)
    for (long item = 0; item < copies.blocks; ++item) {
      const long first = item * copies.block, count = smaller(copies.block, pixels - first);
      point_rows<float>(grid, floats(call.second), floats(call.first), zeros, first, count, block);
      for (long group = 0; group < p.groups; ++group) {
        const RowBlock<float, const float> copied =
            copy_rows<float>(block, count, group * inputs, mine + copies.weights + copies.pointers);
        const OuterRows rows = {nullptr, copied.row[0], copied.stride, 0};
        outer_product(floats(call.first) + first * p.out_channels + group * outputs, p.out_channels,
                      outputs, rows, depth, count, false, mine + group * outputs * depth, depth);
      }
    }
#pragma omp for schedule(static)
    for (long k = 0; k < p.out_channels; ++k) {
      for (long i = k * depth; i < (k + 1) * depth; ++i) {
        float sum = 0.0f;
        for (int t = 0; t < team; ++t) sum += threads[t * copies.thread + i];
        floats(call.result)[i] = sum;
      }
    }
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
