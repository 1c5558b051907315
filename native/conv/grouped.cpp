// Convolutions with few channels a group. As in depthwise.cpp, the image rows that a row of results
// reads lie in L1, with their padding, and 14 results of one vector of channels are summed at once.
//
// Groups narrower than a vector: a vector of results covers several whole groups, and the lines
// hold its channels. A permutation takes channel j of its group to each lane. The taps of a row
// share it. Other groups: each vector of results lies in one group. The lines hold the channels of
// the group, and each multiply-add broadcasts one of them.
#include <omp.h>

#include "conv/algorithms.h"
#include "conv/epilogue.h"
#include "conv/operands.h"
#include "conv/weights.h"
#include "gemm/micro_kernel.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// Results that are summed at once: one row of 14, or two rows of 7. Half of that where 16 registers
// hold all sums.
constexpr int kMany = kTileRows == 14 ? 14 : 7, kFew = 7;

// The lines of one strip of results take at most this, a part of L1.
constexpr long kLineFloats = 8192;

// How channels of a group are spread over vectors.
struct Spread {
  long inputs;   // channels of a group
  bool shared;   // whether a vector covers several groups
  long planes;   // vectors of a pixel in the lines
  long vectors;  // vectors of results: of a group, or of all channels if they are shared

  explicit Spread(const Problem& p)
      : inputs(p.in_channels / p.groups),
        shared(inputs < kLanes && kLanes % inputs == 0),
        planes(shared ? 1 : divide_up(inputs, kLanes)),
        vectors(divide_up(shared ? p.in_channels : inputs, kLanes)) {}

  long items(const Problem& p) const { return shared ? vectors : vectors * p.groups; }
};

long taps_of(const Problem& p) {
  return p.kernel_height * p.kernel_width;
}

// Sums are not cut, so they are kept as short as a chain of the micro-kernel may be. Wide groups
// fill the tiles of matrix products. Taps far apart would need many lines.
bool supports(const Problem& p) {
  constexpr long kReach = 32;
  const long inputs = p.in_channels / p.groups, taps = taps_of(p);
  const bool narrow = inputs > 1 && inputs <= 64 && p.in_channels == p.out_channels;
  return narrow && p.groups > 1 && taps > 1 && taps * inputs <= kChain &&
         (p.kernel_height - 1) * p.dilation_y + p.stride_y < kReach &&
         (p.kernel_width - 1) * p.dilation_x + p.stride_x < kReach;
}

// Packed as [vector of results][tap][channel of the group][kLanes], filled up with zeros; where a
// vector covers several groups, as [vector][row of taps][channel][tap of the row][kLanes].
long weight_floats(const Problem& p) {
  const Spread s(p);
  return s.items(p) * taps_of(p) * s.inputs * kLanes;
}

void pack(const Problem& p, const void* weights, float* packed, int) {
  const Spread s(p);
  const long taps = taps_of(p);
  for (long item = 0; item < s.items(p); ++item) {
    const long group = s.shared ? 0 : item / s.vectors;
    const long first = (s.shared ? item : item % s.vectors) * kLanes;
    const long end = s.shared ? p.out_channels : s.inputs;
    const float* w = floats(weights) + group * s.inputs * taps * s.inputs;
    for (long tap = 0; tap < taps; ++tap) {
      const long row = tap / p.kernel_width, column = tap % p.kernel_width;
      for (long j = 0; j < s.inputs; ++j) {
        const long at =
            s.shared ? (row * s.inputs + j) * p.kernel_width + column : tap * s.inputs + j;
        for (long l = 0; l < kLanes; ++l) {
          packed[at * kLanes + l] =
              first + l < end ? w[((first + l) * taps + tap) * s.inputs + j] : 0.0f;
        }
      }
    }
    packed += taps * s.inputs * kLanes;
  }
}

// The lines of one strip of results: `width` results of a row. Line y of plane q begins at
// (q * (mask + 1) + (y & mask)) * line_floats().
struct Lines {
  long width, pixels, mask = 0;

  explicit Lines(const Problem& p) {
    const Spread s(p);
    const long rows = (p.kernel_height - 1) * p.dilation_y + 1 + p.stride_y;  // two rows of results
    while (mask + 1 < rows) mask = 2 * mask + 1;
    const long reach = (p.kernel_width - 1) * p.dilation_x + 1;
    const long fitting = kLineFloats / (s.planes * (mask + 1) * kLanes);
    width = larger((fitting - reach) / p.stride_x / kMany * kMany, kMany);
    width = smaller(width, round_up(p.out_width, kFew));
    pixels = (width - 1) * p.stride_x + reach;
  }

  long line_floats() const { return pixels * kLanes; }
  long plane_floats() const { return (mask + 1) * line_floats(); }
};

long forward_scratch(const Problem& p, int threads) {
  return threads * Spread(p).planes * Lines(p).plane_floats();
}

// Adds a vector of pixel `at` of a line to the sums that read it under tap s and those behind it.
template <int kColumns, int kWidth, int kStride, int at, int s = 0>
BESTOF_INLINE void add_pixel(Vec pixel, const Vec* weight, Vec* sum) {
  if constexpr (s < kWidth) {
    constexpr int i = (at - s) / kStride;
    if constexpr (at >= s && (at - s) % kStride == 0 && i < kColumns) sum[i] += weight[s] * pixel;
    add_pixel<kColumns, kWidth, kStride, at, s + 1>(pixel, weight, sum);
  }
}

// Adds the pixels of a line under one row of taps, whose lanes come from those that `from` names.
template <int kColumns, int kWidth, int kStride, int at = 0>
BESTOF_INLINE void add_pixels(const float* x, VecInt from, const Vec* weight, Vec* sum) {
  if constexpr (at < (kColumns - 1) * kStride + kWidth) {
    add_pixel<kColumns, kWidth, kStride, at>(__builtin_shuffle(load(x + at * kLanes), from), weight,
                                             sum);
    add_pixels<kColumns, kWidth, kStride, at + 1>(x, from, weight, sum);
  }
}

// What the results of one image, one vector of channels and one strip of columns share.
struct Strip {
  const Problem& p;
  const Epilogue& epilogue;
  const Spread& spread;
  const Lines& lines;
  const float* packed;           // the weights of the vector
  const float* image;            // its first channel that is read
  float *image_result, *result;  // of the image, and of the whole batch
  float* memory;                 // the lines
  long read_lanes;               // channels that are read
  long c, lanes;                 // channels of the results
  long left, count;              // the first result of the strip in its row, and their number

  float* line(long q, long y) const {
    return memory + q * lines.plane_floats() + (y & lines.mask) * lines.line_floats();
  }

  // Fills the lines of row y of the image; with zeros if it lies outside.
  void copy_row(long y) const {
    const bool inside = y >= 0 && y < p.in_height;
    const long before = p.pad_left - left * p.stride_x;  // pixel j is column j - before
    const long first = inside ? smaller(larger(before, 0), lines.pixels) : lines.pixels;
    const long end = larger(smaller(lines.pixels, before + p.in_width), first);
    for (long q = 0; q < spread.planes; ++q) {
      float* to = line(q, y);
      for (long j = 0; j < first; ++j) store(to + j * kLanes, Vec{});
      const long lanes_read = smaller(read_lanes - q * kLanes, kLanes);
      const float* from = image + (y * p.in_width - before) * p.in_channels + q * kLanes;
      for (long j = first; j < end; ++j) {
        const float* pixel = from + j * p.in_channels;
        store(to + j * kLanes, lanes_read == kLanes ? load(pixel) : load_first(pixel, lanes_read));
      }
      for (long j = end; j < lines.pixels; ++j) store(to + j * kLanes, Vec{});
    }
  }

  // Adds one row of taps to kRows x kColumns sums, for groups that share a vector.
  template <int kRows, int kColumns, int kStride, int kWidth>
  BESTOF_INLINE void add_shared(const float* const (&row)[kRows], const float* w, Vec* sum) const {
    const long step = p.stride_x * kLanes, apart = p.dilation_x * kLanes;
    VecInt from;
#pragma GCC unroll 16
    for (int l = 0; l < kLanes; ++l) from[l] = l & -static_cast<int>(spread.inputs);
    for (long j = 0; j < spread.inputs; ++j, from += 1) {
      if constexpr (kWidth > 0) {
        Vec weight[kWidth];
#pragma GCC unroll 3
        for (int s = 0; s < kWidth; ++s, w += kLanes) weight[s] = load(w);
#pragma GCC unroll 2
        for (int k = 0; k < kRows; ++k)
          add_pixels<kColumns, kWidth, kStride>(row[k], from, weight, sum + k * kColumns);
      } else {
        for (long s = 0; s < p.kernel_width; ++s, w += kLanes) {
          const Vec weight = load(w);
#pragma GCC unroll 14
          for (int i = 0; i < kRows * kColumns; ++i) {
            const float* x = row[i / kColumns] + s * apart + i % kColumns * step;
            sum[i] += weight * __builtin_shuffle(load(x), from);
          }
        }
      }
    }
  }

  // Adds one row of taps to the sums, for vectors that lie in one group.
  template <int kRows, int kColumns, int kStride>
  BESTOF_INLINE void add_broadcast(const float* const (&row)[kRows], const float* w,
                                   Vec* sum) const {
    const long step = p.stride_x * kLanes;
    for (long s = 0; s < p.kernel_width; ++s) {
      for (long q = 0; q < spread.planes; ++q) {
        const float* x[kRows];
        for (int k = 0; k < kRows; ++k)
          x[k] = row[k] + q * lines.plane_floats() + s * p.dilation_x * kLanes;
        const long end = smaller(spread.inputs - q * kLanes, kLanes);
        for (long j = 0; j < end; ++j, w += kLanes) {
          const Vec weight = load(w);
#pragma GCC unroll 14
          for (int i = 0; i < kRows * kColumns; ++i) {
            const long at = i % kColumns * (kStride ? kStride * kLanes : step);
            sum[i] += weight * broadcast(x[i / kColumns][at + j]);
          }
        }
      }
    }
  }

  // Writes the first `wanted` of kColumns results in each of kRows rows of results. kWidth: the
  // taps of a row of groups that share a vector, 0 if they are not 3 or lie apart; -1 for other
  // groups.
  template <int kRows, int kColumns, int kStride, int kWidth>
  void results(long oy, long first, long wanted) const {
    Vec sum[kRows * kColumns];
#pragma GCC unroll 14
    for (int i = 0; i < kRows * kColumns; ++i) sum[i] = Vec{};
    const float* w = packed;
    const long row_floats = p.kernel_width * spread.inputs * kLanes;
    for (long r = 0; r < p.kernel_height; ++r, w += row_floats) {
      const long y = oy * p.stride_y - p.pad_top + r * p.dilation_y;
      const float* row[kRows];
      for (int k = 0; k < kRows; ++k)
        row[k] = line(0, y + k * p.stride_y) + first * p.stride_x * kLanes;
      if constexpr (kWidth < 0) {
        add_broadcast<kRows, kColumns, kStride>(row, w, sum);
      } else {
        add_shared<kRows, kColumns, kStride, kWidth>(row, w, sum);
      }
    }
    float sums[kRows * kColumns * kLanes];
#pragma GCC unroll 14
    for (int i = 0; i < kRows * kColumns; ++i) store(sums + i * kLanes, sum[i]);
    for (int k = 0; k < kRows; ++k) {
      float* to = image_result + ((oy + k) * p.out_width + left + first) * p.out_channels + c;
      const auto place = [&](long i) { return to + i * p.out_channels; };
      finish_pixels(sums + k * kColumns * kLanes, kLanes, wanted, place, lanes, c, epilogue,
                    result);
    }
  }

  // Writes the results of rows [oy, oy + rows), one or two.
  template <int kStride, int kWidth>
  void rows_of(long oy, long rows) const {
    long first = 0;
    for (; kMany > kFew && count - first > kFew; first += kMany) {
      for (long k = 0; k < rows; ++k)
        results<1, kMany, kStride, kWidth>(oy + k, first, smaller(count - first, kMany));
    }
    for (; first < count; first += kFew) {
      const long wanted = smaller(count - first, kFew);
      if (kMany > kFew && rows == 2) {
        results<kMany / kFew, kFew, kStride, kWidth>(oy, first, wanted);
      } else {
        for (long k = 0; k < rows; ++k) results<1, kFew, kStride, kWidth>(oy + k, first, wanted);
      }
    }
  }

  template <int kStride, int kWidth>
  void compute(long begin, long end) const {
    long copied = begin * p.stride_y - p.pad_top;  // lines before this one are filled
    for (long oy = begin; oy < end; oy += 2) {
      const long rows = smaller(end - oy, 2), top = oy * p.stride_y - p.pad_top;
      const long behind = top + (rows - 1) * p.stride_y + (p.kernel_height - 1) * p.dilation_y + 1;
      for (copied = larger(copied, top); copied < behind; ++copied) copy_row(copied);
      rows_of<kStride, kWidth>(oy, rows);
    }
  }

  template <int kStride>
  void compute_at(long begin, long end) const {
    if (!spread.shared) return compute<kStride, -1>(begin, end);
    if (kStride > 0 && p.kernel_width == 3 && p.dilation_x == 1)
      return compute<kStride, kStride ? 3 : 0>(begin, end);
    compute<kStride, 0>(begin, end);
  }

  void compute_all(long begin, long end) const {
    if (p.stride_x == 1) return compute_at<1>(begin, end);
    if (p.stride_x == 2) return compute_at<2>(begin, end);
    compute_at<0>(begin, end);
  }
};

// Returns the parts into which the rows of an image are cut: so that all threads work if there are
// few images and channels, and what one part reads and writes stays in L2 while its channels pass.
long parts_of(const Problem& p, const Call& call, long others) {
  constexpr long kKeptFloats = 128 * 1024;
  const long for_threads = call.threads == 1 ? 1 : divide_up(4 * call.threads, p.batch * others);
  const long elements = (p.in_height * p.in_width + p.out_height * p.out_width) * p.in_channels;
  return smaller(larger(for_threads, divide_up(elements, kKeptFloats)), divide_up(p.out_height, 4));
}

void run_forward(const Problem& p, const Call& call) {
  const Spread spread(p);
  const Lines lines(p);
  const long strips = divide_up(p.out_width, lines.width), items = spread.items(p);
  const long parts = parts_of(p, call, strips * items);
  const long thread_floats = spread.planes * lines.plane_floats();
  const long vector_floats = taps_of(p) * spread.inputs * kLanes;
#pragma omp parallel for schedule(static) num_threads(call.threads)
  for (long at = 0; at < p.batch * strips * parts * items; ++at) {
    const long item = at % items, strip = at / items % strips;
    const long part = at / items / strips % parts, n = at / items / strips / parts;
    const long inputs = spread.inputs, vector = item % spread.vectors * kLanes;
    const long from = spread.shared ? vector : item / spread.vectors * inputs;
    const long first = spread.shared ? vector : from + vector;
    const long end = spread.shared ? p.out_channels : from + inputs;
    float* result = floats(call.result);
    const Strip one = {p,
                       call.epilogue,
                       spread,
                       lines,
                       floats(call.second) + item * vector_floats,
                       floats(call.first) + n * p.in_height * p.in_width * p.in_channels + from,
                       result + n * p.out_height * p.out_width * p.out_channels,
                       result,
                       call.scratch + omp_get_thread_num() * thread_floats,
                       spread.shared ? smaller(p.in_channels - from, kLanes) : inputs,
                       first,
                       smaller(end - first, kLanes),
                       strip * lines.width,
                       smaller(p.out_width - strip * lines.width, lines.width)};
    const long begin = part_begin(p.out_height, parts, part);
    const long stop = part_begin(p.out_height, parts, part + 1);
    one.compute_all(begin, stop);
  }
}

}  // namespace

const Passes passes::grouped = {
    .forward = {run_forward, forward_scratch, lowered_flops, weight_floats, pack, supports},
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
