// Convolutions with few channels a group; a first layer of few channels is one group. As in
// depthwise.cpp, the image rows that a row of results reads lie in L1, with their padding, and 14
// results of one vector of channels are summed at once.
//
// Groups narrower than a vector: a vector of results covers several whole groups, and the lines
// hold its channels. A permutation takes channel j of its group to each lane. The taps of a row
// share it. Other groups: each vector of results lies in one group. The lines hold the channels of
// the group, and each multiply-add broadcasts one of them.
#include <omp.h>

#include "conv/algorithms.h"
#include "conv/epilogue.h"
#include "conv/group_units.h"
#include "conv/operands.h"
#include "conv/tap_sums.h"
#include "conv/weights.h"
#include "gemm/micro_kernel.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// kMany results are summed at once: of one row, or kFew of two rows each.

// The lines of one strip of results take at most this, a part of L1.
constexpr long kLineFloats = 8192;

// Sums are not cut, so they are kept as short as a chain of the micro-kernel may be. Wide groups
// fill the tiles of matrix products. Taps far apart would need many lines.
bool supports(const Problem& p) {
  constexpr long kReach = 32;
  const GroupUnits s(p);
  const long taps = taps_of(p);
  const bool narrow =
      p.groups == 1 ? s.inputs <= 4 && p.dilation_x == 1 : s.inputs > 1 && s.inputs <= 64;
  return narrow && taps > 1 && taps * s.inputs <= kChain &&
         (p.kernel_height - 1) * p.dilation_y + p.stride_y < kReach &&
         (p.kernel_width - 1) * p.dilation_x + p.stride_x < kReach;
}

long vector_floats(const Problem& p) {
  return taps_of(p) * (p.in_channels / p.groups) * kLanes;
}

// Packed as [unit][vector of results][tap][channel of the group][kLanes], filled up with zeros;
// where a unit covers several groups, as [unit][row of taps][channel][tap of the row][kLanes].
long weight_floats(const Problem& p) {
  const GroupUnits s(p);
  return s.units * s.vectors * vector_floats(p);
}

void pack(const Problem& p, const void* weights, float* packed, int) {
  const GroupUnits s(p);
  const long taps = taps_of(p);
  for (long item = 0; item < s.units * s.vectors; ++item, packed += vector_floats(p)) {
    const long unit = item / s.vectors, skipped = item % s.vectors * kLanes;
    const long first = s.first(unit, s.outputs) + skipped;
    const long lanes = s.count(unit, s.outputs, p.out_channels) - skipped;
    const float* w = floats(weights) + first * taps * s.inputs;
    for (long tap = 0; tap < taps; ++tap) {
      const long row = tap / p.kernel_width, column = tap % p.kernel_width;
      for (long j = 0; j < s.inputs; ++j) {
        const long at =
            s.shared ? (row * s.inputs + j) * p.kernel_width + column : tap * s.inputs + j;
        for (long l = 0; l < kLanes; ++l)
          packed[at * kLanes + l] = l < lanes ? w[(l * taps + tap) * s.inputs + j] : 0.0f;
      }
    }
  }
}

// The lines of one strip of results: `width` results of a row. Line y of plane q begins at
// (q * (mask + 1) + (y & mask)) * line_floats().
struct Lines {
  long width, pixels, pitch, mask = 0;  // pitch: floats of a pixel

  explicit Lines(const Problem& p) {
    const GroupUnits s(p);
    const long rows = (p.kernel_height - 1) * p.dilation_y + 1 + p.stride_y;  // two rows of results
    while (mask + 1 < rows) mask = 2 * mask + 1;
    const long reach = (p.kernel_width - 1) * p.dilation_x + 1;
    pitch = p.groups == 1 ? s.inputs : kLanes;
    const long fitting = kLineFloats / (s.planes * (mask + 1) * pitch);
    width = larger((fitting - reach) / p.stride_x / kMany * kMany, kMany);
    width = smaller(width, round_up(p.out_width, kFew));
    pixels = (width - 1) * p.stride_x + reach;
  }

  long line_floats() const { return round_up(pixels * pitch, kLanes); }
  long plane_floats() const { return (mask + 1) * line_floats(); }
};

long forward_scratch(const Problem& p, int threads) {
  return threads * GroupUnits(p).planes * Lines(p).plane_floats();
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

// A vector of channels of the results, and its weights. The next rows of taps ask for `share`
// floats each, from `coming` on: the weights of the vectors that follow.
struct Channels {
  const float* packed;
  long c, lanes;
  const float* coming;
  long share;
};

// What the results of one image, one unit and one strip of columns share.
struct Strip {
  const Problem& p;
  const Epilogue& epilogue;
  const GroupUnits& spread;
  const Lines& lines;
  const float* packed;           // the weights of the unit
  const float* image;            // its first channel that is read
  float *image_result, *result;  // of the image, and of the whole batch
  float* memory;                 // the lines
  long read;                     // channels that are read
  long first, written;           // the first channel of the results, and their number
  long left, count;              // the first result of the strip in its row, and their number
  long pitch;                    // floats from pixel to pixel of the results

  float* line(long q, long y) const {
    return memory + q * lines.plane_floats() + (y & lines.mask) * lines.line_floats();
  }

  // Fills the lines of row y of the image; with zeros if it lies outside.
  void copy_row(long y) const {
    if (p.groups == 1) return copy_dense_row(y);
    const bool inside = y >= 0 && y < p.in_height;
    const long before = p.pad_left - left * p.stride_x;  // pixel j is column j - before
    const long first = inside ? smaller(larger(before, 0), lines.pixels) : lines.pixels;
    const long end = larger(smaller(lines.pixels, before + p.in_width), first);
    for (long q = 0; q < spread.planes; ++q) {
      float* to = line(q, y);
      for (long j = 0; j < first; ++j) store(to + j * kLanes, Vec{});
      const long lanes_read = smaller(read - q * kLanes, kLanes);
      const float* from = image + (y * p.in_width - before) * p.in_channels + q * kLanes;
      for (long j = first; j < end; ++j) {
        const float* pixel = from + j * p.in_channels;
        store(to + j * kLanes, lanes_read == kLanes ? load(pixel) : load_first(pixel, lanes_read));
      }
      for (long j = end; j < lines.pixels; ++j) store(to + j * kLanes, Vec{});
    }
  }

  // The same for the only group, whose pixels lie side by side.
  void copy_dense_row(long y) const {
    const bool inside = y >= 0 && y < p.in_height;
    const long before = p.pad_left - left * p.stride_x, all = lines.pixels * lines.pitch;
    const long first = inside ? smaller(larger(before, 0) * lines.pitch, all) : all;
    const long end = larger(smaller(all, (before + p.in_width) * lines.pitch), first);
    float* to = line(0, y);
    const float* from = image + (y * p.in_width - before) * lines.pitch;
    for (long i = 0; i < first; ++i) to[i] = 0.0f;
    for (long i = first; i < end; ++i) to[i] = from[i];
    for (long i = end; i < all; ++i) to[i] = 0.0f;
  }

  // Adds one row of taps to the sums, where all channels of all its taps lie side by side.
  template <int kRows, int kColumns, int kStride>
  BESTOF_INLINE void add_dense(const float* const (&row)[kRows], const float* w, Vec* sum) const {
    // A constant step for 3 channels.
    const long step = kStride ? 3 * kStride : p.stride_x * lines.pitch;
    for (long t = 0; t < p.kernel_width * spread.inputs; ++t, w += kLanes) {
      const Vec weight = load(w);
#pragma GCC unroll 14
      for (int i = 0; i < kRows * kColumns; ++i)
        sum[i] += weight * broadcast(row[i / kColumns][i % kColumns * step + t]);
    }
  }

  // Adds one row of taps to kRows x kColumns sums, for groups that share a vector.
  template <int kRows, int kColumns, int kStride, int kWidth>
  BESTOF_INLINE void add_shared(const float* const (&row)[kRows], const float* w, Vec* sum) const {
    const long step = p.stride_x * kLanes, apart = p.dilation_x * kLanes;
    VecInt from = group_lanes(spread.inputs);
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
  // groups, -2 for the only group.
  template <int kRows, int kColumns, int kStride, int kWidth>
  void results(const Channels& to, long oy, long column, long wanted) const {
    Vec sum[kRows * kColumns];
#pragma GCC unroll 14
    for (int i = 0; i < kRows * kColumns; ++i) sum[i] = Vec{};
    const float* w = to.packed;
    const long row_floats = p.kernel_width * spread.inputs * kLanes;
    for (long r = 0; r < p.kernel_height; ++r, w += row_floats) {
      const long y = oy * p.stride_y - p.pad_top + r * p.dilation_y;
      for (long i = 0; i < to.share; i += kLanes)
        __builtin_prefetch(to.coming + r * to.share + i, 0, 2);
      const float* row[kRows];
      for (int k = 0; k < kRows; ++k)
        row[k] = line(0, y + k * p.stride_y) + column * p.stride_x * lines.pitch;
      if constexpr (kWidth == -2) {
        add_dense<kRows, kColumns, kStride>(row, w, sum);
      } else if constexpr (kWidth < 0) {
        add_broadcast<kRows, kColumns, kStride>(row, w, sum);
      } else {
        add_shared<kRows, kColumns, kStride, kWidth>(row, w, sum);
      }
    }
    float sums[kRows * kColumns * kLanes];
#pragma GCC unroll 14
    for (int i = 0; i < kRows * kColumns; ++i) store(sums + i * kLanes, sum[i]);
    for (int k = 0; k < kRows; ++k) {
      float* out = image_result + ((oy + k) * p.out_width + left + column) * pitch + to.c;
      const auto place = [&](long i) { return out + i * pitch; };
      finish_pixels(sums + k * kColumns * kLanes, kLanes, wanted, place, to.lanes, to.c, epilogue,
                    result);
    }
  }

  // Writes a vector of channels of the results of rows [oy, oy + rows), one or two.
  template <int kStride, int kWidth>
  void rows_of(Channels to, long oy, long rows) const {
    long at = 0;
    for (; kMany > kFew && count - at > kFew; at += kMany) {
      for (long k = 0; k < rows; ++k, to.share = 0)
        results<1, kMany, kStride, kWidth>(to, oy + k, at, smaller(count - at, kMany));
    }
    for (; at < count; at += kFew) {
      const long wanted = smaller(count - at, kFew);
      if (kMany > kFew && rows == 2) {
        results<kMany / kFew, kFew, kStride, kWidth>(to, oy, at, wanted);
        to.share = 0;
      } else {
        for (long k = 0; k < rows; ++k, to.share = 0)
          results<1, kFew, kStride, kWidth>(to, oy + k, at, wanted);
      }
    }
  }

  template <int kStride, int kWidth>
  void compute(long begin, long end) const {
    long copied = begin * p.stride_y - p.pad_top;  // lines before this one are filled
    // Other layers of a network have driven the weights out of L2: 384 channels of 7x7 pixels in 24
    // groups took 60 us, and 40 if their weights lay there.
    const long size = vector_floats(p), asks = divide_up(end - begin, 2) * p.kernel_height;
    const long share = round_up(divide_up(size, asks), kLanes);
    for (long oy = begin; oy < end; oy += 2) {
      const long rows = smaller(end - oy, 2), top = oy * p.stride_y - p.pad_top;
      const long behind = top + (rows - 1) * p.stride_y + (p.kernel_height - 1) * p.dilation_y + 1;
      for (copied = larger(copied, top); copied < behind; ++copied) copy_row(copied);
      for (long v = 0; v < spread.vectors; ++v) {
        const long skipped = v * kLanes;
        const float* weights = packed + v * size;
        const float* coming = weights + size + (oy - begin) / 2 * p.kernel_height * share;
        const Channels to = {weights, first + skipped, smaller(written - skipped, kLanes), coming,
                             share};
        rows_of<kStride, kWidth>(to, oy, rows);
      }
    }
  }

  template <int kStride>
  void compute_at(long begin, long end) const {
    if (p.groups == 1)
      return spread.inputs == 3 ? compute<kStride, -2>(begin, end) : compute<0, -2>(begin, end);
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
  const GroupUnits spread(p);
  const Lines lines(p);
  const long strips = divide_up(p.out_width, lines.width), units = spread.units;
  const long parts = parts_of(p, call, strips * units);
  const long thread_floats = spread.planes * lines.plane_floats();
  const long pitch = pixel_pitch(p, call.epilogue);
#pragma omp parallel for schedule(static) num_threads(call.threads)
  for (long item = 0; item < p.batch * parts * strips * units; ++item) {
    const long unit = item % units, strip = item / units % strips;
    const long part = item / units / strips % parts, n = item / units / strips / parts;
    const long from = spread.first(unit, spread.inputs);
    float* result = floats(call.result);
    const Strip one = {p,
                       call.epilogue,
                       spread,
                       lines,
                       floats(call.second) + unit * spread.vectors * vector_floats(p),
                       floats(call.first) + n * p.in_height * p.in_width * p.in_channels + from,
                       result + n * p.out_height * p.out_width * pitch,
                       result,
                       call.scratch + omp_get_thread_num() * thread_floats,
                       spread.count(unit, spread.inputs, p.in_channels),
                       spread.first(unit, spread.outputs),
                       spread.count(unit, spread.outputs, p.out_channels),
                       strip * lines.width,
                       smaller(p.out_width - strip * lines.width, lines.width),
                       pitch};
    one.compute_all(part_begin(p.out_height, parts, part),
                    part_begin(p.out_height, parts, part + 1));
  }
}

}  // namespace

const Passes passes::grouped = {
    .forward = {run_forward, forward_scratch, lowered_flops, weight_floats, pack, supports},
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
