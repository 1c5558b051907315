// Direct convolution over a padded copy of a few input rows, so no tile meets a border. Works for
// every problem, and is made for few input channels, where the copy is small.
//
// With x in channels last, there is a pointer for each result and tap. With one group and no
// dilation, a row of the kernel and its channels lie together in the copy, and are one tap.
//
// With x in channels first, one list has the offset of each term from the first pixel of its
// result, and serves all results. So the input of a network needs no copy in channels last.
#include "conv/algorithms.h"
#include "conv/forward_grid.h"
#include "conv/shares.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// A band: output rows [first, first + rows) of one image, and the padded input rows that they read.
// In channels first, each row of the copy has a line for each channel.
struct Bands {
  long rows, per_image;          // output rows of a band; bands of an image
  long height, width;            // padded input rows and columns of a band
  long pixel, channel, line;     // floats from one pixel, channel and row of the copy to the next
  long taps, depth;              // of the GEMM
  long pointers, thread, total;  // floats
};

// Whether the padded input of one row of results takes less than 1 GiB. Taps far outside of the
// image would need memory for the zeros between.
bool supports(const Problem& p) {
  const double width =
      (p.out_width - 1.0) * p.stride_x + (p.kernel_width - 1.0) * p.dilation_x + 1.0;
  const double height = (p.kernel_height - 1.0) * p.dilation_y + 1.0;
  return width * height * p.in_channels * sizeof(float) < 1 << 30 &&
         (!p.planes || (p.groups == 1 && terms_of(p) <= kChain));
}

// A band takes a quarter of L2 and leaves the rest to the weights. If the image is large enough,
// each thread has at least four bands.
Bands plan_bands(const Problem& p, int threads) {
  Bands b;
  b.width = (p.out_width - 1) * p.stride_x + p.dilation_x * (p.kernel_width - 1) + 1;
  b.pixel = p.planes ? 1 : p.in_channels;
  b.channel = p.planes ? b.width : 1;
  b.line = b.width * p.in_channels;
  const long row_floats = larger(b.line * p.stride_y, 1);
  const long wanted = divide_up(p.batch * p.out_height, 4L * threads);
  b.rows = larger(smaller(smaller(level2_bytes() / 16 / row_floats, wanted), p.out_height), 1);
  b.rows = smaller(b.rows, larger(512 / larger(p.out_width, 1), 1));
  b.per_image = divide_up(p.out_height, b.rows);
  b.height = (b.rows - 1) * p.stride_y + p.dilation_y * (p.kernel_height - 1) + 1;
  const bool joined = p.groups == 1 && p.dilation_x == 1;
  b.taps = joined ? p.kernel_height : p.kernel_height * p.kernel_width;
  b.depth = joined ? p.kernel_width * p.in_channels : p.in_channels / p.groups;
  b.pointers =
      p.planes ? round_up(2 * terms_of(p), 16) : row_block_floats(b.rows * p.out_width, b.taps);
  b.thread = b.pointers + round_up(b.height * b.line, 16);
  b.total = threads * b.thread;
  return b;
}

// Copies input rows from `first_y` on, columns from -pad_left on; what lies outside the image is
// zero.
void copy_band(const Problem& p, const Bands& b, const float* image, long first_y, float* band) {
  const long left = smaller(larger(p.pad_left, 0), b.width);
  const long right = larger(smaller(p.in_width + p.pad_left, b.width), left);
  const long pieces = p.planes ? p.in_channels : 1;
  for (long y = 0; y < b.height; ++y) {
    const long from = first_y + y;
    for (long piece = 0; piece < pieces; ++piece, band += b.width * b.pixel) {
      if (from < 0 || from >= p.in_height) {
        __builtin_memset(band, 0, b.width * b.pixel * sizeof(float));
        continue;
      }
      const float* line = image + (piece * p.in_height + from) * p.in_width * b.pixel;
      __builtin_memset(band, 0, left * b.pixel * sizeof(float));
      __builtin_memcpy(band + left * b.pixel, line + (left - p.pad_left) * b.pixel,
                       (right - left) * b.pixel * sizeof(float));
      __builtin_memset(band + right * b.pixel, 0, (b.width - right) * b.pixel * sizeof(float));
    }
  }
}

// Points the rows of a full band at its copy, which lies at one place for all bands of a thread. To
// do so for each band took a third of the time of 32 filters of 3x3 @112.
void point_band(const Problem& p, const Bands& b, const float* band,
                RowBlock<float, float>& block) {
  const bool joined = b.taps == p.kernel_height;
  for (long j = 0, at = 0; j < b.rows; ++j) {
    const float* from = band + j * p.stride_y * b.line;
    for (long i = 0; i < p.out_width; ++i, ++at, from += p.stride_x * b.pixel) {
      const float** to = block.row + at;
      for (long tap = 0; tap < b.taps; ++tap, to += block.leading) {
        const long r = joined ? tap : tap / p.kernel_width;
        const long s = joined ? 0 : tap % p.kernel_width;
        *to = from + r * p.dilation_y * b.line + s * p.dilation_x * b.pixel;
      }
      block.regular[at] = i > 0 || (at > 0 && from - block.row[at - 1] == block.stride);
    }
  }
}

// Lists the offsets of the terms of a result, in the order of the packed weights.
void list_terms(const Problem& p, const Bands& b, long* offset) {
  for (long r = 0; r < p.kernel_height; ++r) {
    for (long s = 0; s < p.kernel_width; ++s) {
      for (long c = 0; c < p.in_channels; ++c)
        *offset++ = r * p.dilation_y * b.line + s * p.dilation_x * b.pixel + c * b.channel;
    }
  }
}

// A band whose terms are listed, and its place among the results.
struct ListedBand {
  const long* offset;
  long terms, step;  // step: floats from one result of a row to the next
  const float* packed;
  const Epilogue& epilogue;
  const float* result;
};

// Computes R results of a row, `apart` floats from each other, for one panel.
template <int V, int R>
void sum_terms(const ListedBand& band, const float* pixel, float* out, long apart, long channel,
               long left, const float* b) {
  const Epilogue epilogue = band.epilogue;  // stores cannot change this copy
  float* places[R];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) places[i] = out + i * apart;
  const float* residual = static_cast<const float*>(epilogue.residual);
  ask_for_tile<V, R>(places, channel, left, residual, band.result);
  Accumulator<R, V> acc;
  clear(acc);
  const long step = band.step;
  for (long k = 0; k < band.terms; ++k, b += kPanel) {
    const float* a = pixel + band.offset[k];
    Vec column[V];
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) column[j] = load(b + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const Vec row = broadcast(a[i * step]);
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) acc.v[i][j] += row * column[j];
    }
  }
  write_tile<V, R>(acc, places, channel, left, epilogue, band.result);
}

template <int R>
BESTOF_INLINE void sum_count(long count, const ListedBand& band, const float* pixel, float* out,
                             long outputs, long pitch) {
  if constexpr (R > 0) {
    if (count < R) return sum_count<R - 1>(count, band, pixel, out, outputs, pitch);
    for (long channel = 0; channel < outputs; channel += kPanel) {
      const long left = outputs - channel;
      const float* b = band.packed + channel * band.terms;
      if (left <= kLanes) {
        sum_terms<1, R>(band, pixel, out, pitch, channel, left, b);
      } else {
        sum_terms<kPanelVectors, R>(band, pixel, out, pitch, channel, left, b);
      }
    }
  }
}

// Computes `rows` rows of results, which begin at `out`.
void multiply_listed(const Problem& p, const Bands& b, const ListedBand& band, const float* copy,
                     float* out, long rows) {
  const TileCut cut = cut_rows(p.out_width);
  const long pitch = pixel_pitch(p, band.epilogue);
  for (long j = 0; j < rows; ++j) {
    const float* line = copy + j * p.stride_y * b.line;
    for (long t = 0; t < cut.tiles; ++t) {
      const long first = cut.begin(t), count = cut.begin(t + 1) - first;
      sum_count<kTileRows>(count, band, line + first * band.step,
                           out + (j * p.out_width + first) * pitch, p.out_channels, pitch);
    }
  }
}

long forward_scratch(const Problem& p, int threads) {
  return plan_bands(p, threads).total;
}

void run_forward(const Problem& p, const Call& call) {
  const Bands b = plan_bands(p, call.threads);
  const long outputs = p.out_channels / p.groups, inputs = p.in_channels / p.groups;
  const long panels = divide_up(outputs, kPanel), pitch = pixel_pitch(p, call.epilogue);
  Shares shares(p.batch * b.per_image, call.threads);
#pragma omp parallel num_threads(call.threads)
  {
    const long thread = omp_get_thread_num();
    float* mine = call.scratch + thread * b.thread;
    float* band = mine + b.pointers;
    long* offset = reinterpret_cast<long*>(mine);
    RowBlock<float, float> block = place_row_block<float, float>(
        mine, b.rows * p.out_width, b.taps, b.depth, p.stride_x * p.in_channels);
    const ListedBand listed = {
        offset,        terms_of(p),        p.stride_x * b.pixel, floats(call.second),
        call.epilogue, floats(call.result)};
    if (p.planes) {
      list_terms(p, b, offset);
    } else {
      point_band(p, b, band, block);
    }
    for (long item = shares.take(thread); item >= 0; item = shares.take(thread)) {
      const long n = item / b.per_image, first = item % b.per_image * b.rows;
      const long rows = smaller(b.rows, p.out_height - first);
      copy_band(p, b, floats(call.first) + n * p.in_height * p.in_width * p.in_channels,
                first * p.stride_y - p.pad_top, band);
      float* out = floats(call.result) + (n * p.out_height + first) * p.out_width * pitch;
      if (p.planes) {
        multiply_listed(p, b, listed, band, out, rows);
        continue;
      }
      for (long at = 0; at < rows * p.out_width; ++at) block.out[at] = out + at * pitch;
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
