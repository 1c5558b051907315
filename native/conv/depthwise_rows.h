// Rows of results of a depthwise convolution, one vector of channels at a time. The rows of an
// image that a row of results reads lie as float32 in lines of pixels with their padding: no result
// is at an edge.
#pragma once
#include "conv/epilogue.h"
#include "conv/tap_sums.h"

namespace bestof {
namespace BESTOF_TARGET {

constexpr long kDepthwiseBlock = 16;  // channels whose weights lie side by side

// The weights of one tap, from channel c to the end of its block.
template <class Floats>
BESTOF_INLINE Floats* weights_at(const Problem& p, Floats* packed, long tap, long c) {
  return packed + (c / kDepthwiseBlock * taps_of(p) + tap) * kDepthwiseBlock + c % kDepthwiseBlock;
}

template <class Element>
BESTOF_INLINE Vec read(const Element* from, long lanes) {
  return lanes == kLanes ? load(from) : load_first(from, lanes);
}

// Lines of pixels, kStep channels apart. Pixel j of a line is column j - pad_left of the image, and
// zero outside of it. Row y lies in line y modulo the number of lines, a power of 2: a division a
// row took as long as 20 results.
template <long kStep>
struct Lines {
  long mask = 0, pixels;

  explicit Lines(const Problem& p)
      : pixels((round_up(p.out_width, kFew) - 1) * p.stride_x +
               (p.kernel_width - 1) * p.dilation_x + 1) {
    const long read = smaller((p.kernel_height - 1) * p.dilation_y + 1, p.in_height);
    while (mask + 1 < read) mask = 2 * mask + 1;
  }

  long line_floats() const { return pixels * kStep; }
  long floats() const { return (mask + 1) * line_floats(); }
  long at(long y) const { return (y & mask) * line_floats(); }
};

// Copies channels [c, c + lanes) of a row of an image, `from` on.
template <long kStep, class Element>
inline void copy_row(const Problem& p, const Element* from, long lanes, const Lines<kStep>& lines,
                     float* to) {
  const long first = larger(p.pad_left, 0), end = smaller(lines.pixels, p.pad_left + p.in_width);
  for (long j = first; j < end; ++j) {
    store(to + j * kStep, read(from + (j - p.pad_left) * p.in_channels, lanes));
  }
}

template <long kStep, int kResults, int kWidth, int kStride, int j = 0>
BESTOF_INLINE void add_pixels(const float* x, const Vec* weight, Vec* sum) {
  if constexpr (j < (kResults - 1) * kStride + kWidth) {
    add_pixel<kResults, kWidth, kStride, j>(load(x + j * kStep), weight, sum);
    add_pixels<kStep, kResults, kWidth, kStride, j + 1>(x, weight, sum);
  }
}

// Adds one row of taps to kResults sums. kWidth taps and kStride are constants where both are
// usual: then each pixel is loaded once. They are 0 otherwise.
template <long kStep, int kResults, int kWidth, int kStride>
BESTOF_INLINE void add_taps(const Problem& p, const float* x, const float* w, Vec* sum) {
  if constexpr (kWidth > 0) {
    Vec weight[kWidth];
#pragma GCC unroll 7
    for (int s = 0; s < kWidth; ++s) weight[s] = load(w + s * kDepthwiseBlock);
    add_pixels<kStep, kResults, kWidth, kStride>(x, weight, sum);
  } else {
    const long step = p.stride_x * kStep;
    for (long s = 0; s < p.kernel_width; ++s, x += p.dilation_x * kStep, w += kDepthwiseBlock) {
      const Vec weight = load(w);
#pragma GCC unroll 14
      for (int i = 0; i < kResults; ++i) sum[i] += weight * load(x + i * step);
    }
  }
}

// One vector of channels, [c, c + lanes), of the results of an image.
template <long kStep, class Element>
struct Strip {
  const Problem& p;
  const Epilogue& epilogue;
  const float* packed;  // the weights of channel c
  const float* memory;  // the lines of channel c
  const Element* result;
  long c, lanes;

  // Writes `count` of kResults results of row oy, from `first` on. The results of channel c of the
  // row begin at `row`, and lie `apart` elements apart.
  template <int kResults, int kWidth, int kStride>
  void results(const Lines<kStep>& lines, long oy, Element* row, long apart, long first,
               long count) const {
    Vec sum[kResults];
#pragma GCC unroll 14
    for (int i = 0; i < kResults; ++i) sum[i] = Vec{};
    const float *x = memory + first * p.stride_x * kStep, *w = packed;
    long y = oy * p.stride_y - p.pad_top;
    for (long r = 0; r < p.kernel_height;
         ++r, y += p.dilation_y, w += p.kernel_width * kDepthwiseBlock) {
      if (y >= 0 && y < p.in_height)  // rows outside of the image add nothing
        add_taps<kStep, kResults, kWidth, kStride>(p, x + lines.at(y), w, sum);
    }
    Element* to = row + first * apart;
    const bool is_whole = count == kResults && lanes == kLanes && !epilogue.residual;
    if (is_whole && is_bounded(epilogue.activation)) {
      const Bounds bounds(epilogue.activation);
      const Vec bias = bias_at(epilogue, c);
#pragma GCC unroll 14
      for (int i = 0; i < kResults; ++i) store(to + i * apart, bounds(sum[i] + bias));
      return;
    }
    float sums[kResults * kLanes];
#pragma GCC unroll 14
    for (int i = 0; i < kResults; ++i) store(sums + i * kLanes, sum[i]);
    const auto place = [&](long i) { return to + i * apart; };
    finish_pixels(sums, kLanes, count, place, lanes, c, epilogue, result);
  }

  template <int kWidth, int kStride>
  void row_of(const Lines<kStep>& lines, long oy, Element* row, long apart) const {
    long first = 0;
    for (; kMany > kFew && p.out_width - first >= kMany; first += kMany)
      results<kMany, kWidth, kStride>(lines, oy, row, apart, first, kMany);
    for (; first < p.out_width; first += kFew)
      results<kFew, kWidth, kStride>(lines, oy, row, apart, first,
                                     smaller(p.out_width - first, kFew));
  }

  // Writes row oy of the results from the lines in memory; see `results`.
  void row(const Lines<kStep>& lines, long oy, Element* to, long apart) const {
    const long width = p.dilation_x == 1 && p.stride_x <= 2 ? p.kernel_width : 0;
    const bool single = p.stride_x == 1;
    if (width == 3)
      return single ? row_of<3, 1>(lines, oy, to, apart) : row_of<3, 2>(lines, oy, to, apart);
    if (width == 5)
      return single ? row_of<5, 1>(lines, oy, to, apart) : row_of<5, 2>(lines, oy, to, apart);
    if (width == 7)
      return single ? row_of<7, 1>(lines, oy, to, apart) : row_of<7, 2>(lines, oy, to, apart);
    row_of<0, 0>(lines, oy, to, apart);
  }
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
