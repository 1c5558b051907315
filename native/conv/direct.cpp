// Direct convolution over a padded copy of a few input rows. With one group and no dilation, a row
// of the kernel and its channels lie together in the copy. So the 7x7x3 stem reduces over 21
// elements at a time instead of 3, and no tile meets a border. Works for every problem, and is made
// for few input channels, where the copy is small.
#include "conv/algorithms.h"
#include "conv/forward_grid.h"
#include "conv/shares.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// A band: output rows [first, first + rows) of one image, and the padded input rows that they read.
struct Bands {
  long rows, per_image;          // output rows of a band; bands of an image
  long height, width;            // padded input rows and columns of a band
  long taps, depth;              // of the GEMM
  long pointers, thread, total;  // floats
};

// Whether the padded input of one row of results takes less than 1 GiB. Taps far outside of the
// image would need memory for the zeros between.
bool supports(const Problem& p) {
  const double width =
      (p.out_width - 1.0) * p.stride_x + (p.kernel_width - 1.0) * p.dilation_x + 1.0;
  const double height = (p.kernel_height - 1.0) * p.dilation_y + 1.0;
  return width * height * p.in_channels * sizeof(float) < 1 << 30;
}

// A band takes a quarter of L2 and leaves the rest to the weights. If the image is large enough,
// each thread has at least four bands.
Bands plan_bands(const Problem& p, int threads) {
  Bands b;
  b.width = (p.out_width - 1) * p.stride_x + p.dilation_x * (p.kernel_width - 1) + 1;
  const long row_floats = larger(b.width * p.in_channels * p.stride_y, 1);
  const long wanted = divide_up(p.batch * p.out_height, 4L * threads);
  b.rows = larger(smaller(smaller(level2_bytes() / 16 / row_floats, wanted), p.out_height), 1);
  b.rows = smaller(b.rows, larger(512 / larger(p.out_width, 1), 1));
  b.per_image = divide_up(p.out_height, b.rows);
  b.height = (b.rows - 1) * p.stride_y + p.dilation_y * (p.kernel_height - 1) + 1;
  const bool joined = p.groups == 1 && p.dilation_x == 1;
  b.taps = joined ? p.kernel_height : p.kernel_height * p.kernel_width;
  b.depth = joined ? p.kernel_width * p.in_channels : p.in_channels / p.groups;
  b.pointers = row_block_floats(b.rows * p.out_width, b.taps);
  b.thread = b.pointers + round_up(b.height * b.width * p.in_channels, 16);
  b.total = threads * b.thread;
  return b;
}

// Copies input rows from `first_y` on, columns from -pad_left on; what lies outside the image is
// zero.
void copy_band(const Problem& p, const Bands& b, const float* image, long first_y, float* band) {
  const long channels = p.in_channels;
  const long left = smaller(larger(p.pad_left, 0), b.width);
  const long right = larger(smaller(p.in_width + p.pad_left, b.width), left);
  for (long y = 0; y < b.height; ++y, band += b.width * channels) {
    const long from = first_y + y;
    if (from < 0 || from >= p.in_height) {
      __builtin_memset(band, 0, b.width * channels * sizeof(float));
      continue;
    }
    __builtin_memset(band, 0, left * channels * sizeof(float));
    __builtin_memcpy(band + left * channels,
                     image + (from * p.in_width + left - p.pad_left) * channels,
                     (right - left) * channels * sizeof(float));
    __builtin_memset(band + right * channels, 0, (b.width - right) * channels * sizeof(float));
  }
}

// Points the rows of a full band at its copy, which lies at one place for all bands of a thread. To
// do so for each band took a third of the time of 32 filters of 3x3 @112.
void point_band(const Problem& p, const Bands& b, const float* band,
                RowBlock<float, float>& block) {
  const long channels = p.in_channels, line = b.width * channels;
  const bool joined = b.taps == p.kernel_height;
  for (long j = 0, at = 0; j < b.rows; ++j) {
    const float* from = band + j * p.stride_y * line;
    for (long i = 0; i < p.out_width; ++i, ++at, from += p.stride_x * channels) {
      const float** to = block.row + at;
      for (long tap = 0; tap < b.taps; ++tap, to += block.leading) {
        const long r = joined ? tap : tap / p.kernel_width;
        const long s = joined ? 0 : tap % p.kernel_width;
        *to = from + r * p.dilation_y * line + s * p.dilation_x * channels;
      }
      block.regular[at] = i > 0 || (at > 0 && from - block.row[at - 1] == block.stride);
    }
  }
}

long forward_scratch(const Problem& p, int threads) {
  return plan_bands(p, threads).total;
}

void run_forward(const Problem& p, const Call& call) {
  const Bands b = plan_bands(p, call.threads);
  const long outputs = p.out_channels / p.groups, inputs = p.in_channels / p.groups;
  const long panels = divide_up(outputs, kPanel);
  Shares shares(p.batch * b.per_image, call.threads);
#pragma omp parallel num_threads(call.threads)
  {
    const long thread = omp_get_thread_num();
    float* mine = call.scratch + thread * b.thread;
    float* band = mine + b.pointers;
    RowBlock<float, float> block = place_row_block<float, float>(
        mine, b.rows * p.out_width, b.taps, b.depth, p.stride_x * p.in_channels);
    point_band(p, b, band, block);
    for (long item = shares.take(thread); item >= 0; item = shares.take(thread)) {
      const long n = item / b.per_image, first = item % b.per_image * b.rows;
      const long rows = smaller(b.rows, p.out_height - first);
      copy_band(p, b, floats(call.first) + n * p.in_height * p.in_width * p.in_channels,
                first * p.stride_y - p.pad_top, band);
      float* out =
          floats(call.result) + (n * p.out_height + first) * p.out_width * p.out_channels;
      for (long at = 0; at < rows * p.out_width; ++at) block.out[at] = out + at * p.out_channels;
      for (long group = 0; group < p.groups; ++group) {
        const Columns<float> columns = {
            floats(call.second) + group * panels * b.taps * b.depth * kPanel, 0, panels, outputs,
            group * outputs};
        multiply_block<false>(block, rows * p.out_width, group * inputs, columns, call.epilogue,
                              floats(call.result));
      }
    }
  }
}

}  // namespace

const Passes passes::direct = {
    .forward = {run_forward, forward_scratch, lowered_flops, weight_floats, pack_forward, supports},
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
