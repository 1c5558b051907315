// Depthwise convolution: each group has one input and one output channel, so a vector of channels
// shares every step. Memory is the limit, not arithmetic: each row of the result is made from rows
// that stay in L1.
#include <omp.h>

#include "conv/algorithms.h"
#include "conv/epilogue.h"
#include "conv/weights.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

constexpr int kPixels = 8;  // results of a row that are summed at once

long taps_of(const Problem& p) {
  return p.kernel_height * p.kernel_width;
}
long padded_channels(const Problem& p) {
  return round_up(p.in_channels, 16);
}

// Packed as [tap][channels], the channels filled up with zeros to a cache line.
long weight_floats(const Problem& p) {
  return taps_of(p) * padded_channels(p);
}

void pack(const Problem& p, const void* weights, float* packed, int) {
  const float* w = floats(weights);
  const long taps = taps_of(p), channels = padded_channels(p);
  for (long tap = 0; tap < taps; ++tap) {
    for (long c = 0; c < channels; ++c)
      packed[tap * channels + c] = c < p.in_channels ? w[c * taps + tap] : 0.0f;
  }
}

long no_scratch(const Problem&, int) {
  return 0;
}

BESTOF_INLINE Vec read(const float* from, long lanes) {
  return lanes == kLanes ? load(from) : load_first(from, lanes);
}

// One row of results, for channels [c, c + lanes).
void forward_row(const Problem& p, const float* image, const float* packed, long oy, long c,
                 long lanes, const Epilogue& epilogue, float* y_row, const float* result) {
  const long channels = padded_channels(p), reach = (p.kernel_width - 1) * p.dilation_x;
  for (long first = 0; first < p.out_width; first += kPixels) {
    const long count = smaller(p.out_width - first, kPixels), x0 = first * p.stride_x - p.pad_left;
    const bool inside = count == kPixels && lanes == kLanes && x0 >= 0 &&
                        x0 + (kPixels - 1) * p.stride_x + reach < p.in_width;
    Vec sum[kPixels];
#pragma GCC unroll 8
    for (int i = 0; i < kPixels; ++i) sum[i] = Vec{};
    for (long r = 0; r < p.kernel_height; ++r) {
      const long iy = oy * p.stride_y - p.pad_top + r * p.dilation_y;
      if (iy < 0 || iy >= p.in_height) continue;
      const float* line = image + iy * p.in_width * p.in_channels + c;
      for (long s = 0; s < p.kernel_width; ++s) {
        const Vec w = load(packed + (r * p.kernel_width + s) * channels + c);
        const long from = x0 + s * p.dilation_x;
        if (inside) {
#pragma GCC unroll 8
          for (int i = 0; i < kPixels; ++i)
            sum[i] += w * load(line + (from + i * p.stride_x) * p.in_channels);
        } else {
#pragma GCC unroll 8
          for (int i = 0; i < kPixels; ++i) {
            const long ix = from + i * p.stride_x;
            if (i < count && ix >= 0 && ix < p.in_width)
              sum[i] += w * read(line + ix * p.in_channels, lanes);
          }
        }
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kPixels; ++i) {
      if (i < count)
        finish(sum[i], y_row + (first + i) * p.out_channels + c, lanes, c, epilogue, result);
    }
  }
}

void run_forward(const Problem& p, const Call& call) {
#pragma omp parallel for schedule(static) num_threads(call.threads)
  for (long item = 0; item < p.batch * p.out_height; ++item) {
    const float* image =
        floats(call.first) + item / p.out_height * p.in_height * p.in_width * p.in_channels;
    for (long c = 0; c < p.in_channels; c += kLanes) {
      forward_row(p, image, floats(call.second), item % p.out_height, c,
                  smaller(p.in_channels - c, kLanes), call.epilogue,
                  floats(call.result) + item * p.out_width * p.out_channels, floats(call.result));
    }
  }
}

long backward_input_scratch(const Problem& p, int) {
  return weight_floats(p);
}

// Each element of x gathers from the results that read it, so no two threads write to one place.
void run_backward_input(const Problem& p, const Call& call) {
  const long channels = padded_channels(p);
  pack(p, call.second, call.scratch, 1);
#pragma omp parallel for schedule(static) num_threads(call.threads)
  for (long item = 0; item < p.batch * p.in_height; ++item) {
    const long n = item / p.in_height, iy = item % p.in_height;
    const float* grad = floats(call.first) + n * p.out_height * p.out_width * p.out_channels;
    float* row = floats(call.result) + item * p.in_width * p.in_channels;
    for (long i = 0; i < p.in_width * p.in_channels; ++i) row[i] = 0.0f;
    for (long r = 0; r < p.kernel_height; ++r) {
      const long y = iy + p.pad_top - r * p.dilation_y;
      if (y < 0 || y % p.stride_y != 0 || y / p.stride_y >= p.out_height) continue;
      const float* line = grad + y / p.stride_y * p.out_width * p.out_channels;
      for (long s = 0; s < p.kernel_width; ++s) {
        const float* w = call.scratch + (r * p.kernel_width + s) * channels;
        for (long ox = 0; ox < p.out_width; ++ox) {
          const long ix = ox * p.stride_x - p.pad_left + s * p.dilation_x;
          if (ix < 0 || ix >= p.in_width) continue;
          for (long c = 0; c < p.in_channels; c += kLanes) {
            const long lanes = smaller(p.in_channels - c, kLanes);
            float* to = row + ix * p.in_channels + c;
            const Vec sum =
                read(to, lanes) + load(w + c) * read(line + ox * p.out_channels + c, lanes);
            if (lanes == kLanes) {
              store(to, sum);
            } else {
              store_first(to, sum, lanes);
            }
          }
        }
      }
    }
  }
}

long backward_weight_scratch(const Problem& p, int threads) {
  return threads * weight_floats(p);
}

// Every thread sums its rows into [tap][channels] of its own.
void run_backward_weight(const Problem& p, const Call& call) {
  const long channels = padded_channels(p), taps = taps_of(p);
#pragma omp parallel num_threads(call.threads)
  {
    const int team = omp_get_num_threads();
    float* mine = call.scratch + omp_get_thread_num() * weight_floats(p);
    for (long i = 0; i < weight_floats(p); ++i) mine[i] = 0.0f;
#pragma omp for schedule(static)
    for (long item = 0; item < p.batch * p.out_height; ++item) {
      const long n = item / p.out_height, oy = item % p.out_height;
      const float* grad = floats(call.first) + item * p.out_width * p.out_channels;
      for (long tap = 0; tap < taps; ++tap) {
        const long iy = oy * p.stride_y - p.pad_top + tap / p.kernel_width * p.dilation_y;
        if (iy < 0 || iy >= p.in_height) continue;
        const float* line =
            floats(call.second) + (n * p.in_height + iy) * p.in_width * p.in_channels;
        const long shift = tap % p.kernel_width * p.dilation_x - p.pad_left;
        for (long c = 0; c < p.in_channels; c += kLanes) {
          const long lanes = smaller(p.in_channels - c, kLanes);
          Vec sum = Vec{};
          for (long ox = 0; ox < p.out_width; ++ox) {
            const long ix = ox * p.stride_x + shift;
            if (ix < 0 || ix >= p.in_width) continue;
            sum += read(grad + ox * p.out_channels + c, lanes) *
                   read(line + ix * p.in_channels + c, lanes);
          }
          float* to = mine + tap * channels + c;
          store_first(to, load_first(to, lanes) + sum, lanes);
        }
      }
    }
#pragma omp for schedule(static)
    for (long c = 0; c < p.in_channels; ++c) {
      for (long tap = 0; tap < taps; ++tap) {
        float sum = 0.0f;
        for (int t = 0; t < team; ++t)
          sum += call.scratch[t * weight_floats(p) + tap * channels + c];
        floats(call.result)[c * taps + tap] = sum;
      }
    }
  }
}

}  // namespace

const Passes passes::depthwise = {
    .forward = {run_forward, no_scratch, lowered_flops, weight_floats, pack},
    .backward_input = {run_backward_input, backward_input_scratch, lowered_flops},
    .backward_weight = {run_backward_weight, backward_weight_scratch, lowered_flops},
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
