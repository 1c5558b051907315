// Depthwise convolution: each group has one input and one output channel, so a vector of channels
// shares every step. The forward pass keeps the image rows that a row of results reads as float32
// in L1, one vector of channels wide, with their padding. So an element of bfloat16 is widened
// once, not once for each tap, and no result is at an edge.
#include <omp.h>

#include "conv/algorithms.h"
#include "conv/epilogue.h"
#include "conv/operands.h"
#include "conv/weights.h"
#include "gemm/micro_kernel.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// Results of a row that are summed at once: 7, 14, 28, 56 and 112 are multiples. Twice as many
// where 32 registers hold their sums: the weights of a row of taps are then loaded half as often.
constexpr int kFew = 7, kMany = kTileRows == 14 ? 14 : kFew;
constexpr long kBlock = 16;  // channels whose weights lie side by side

long taps_of(const Problem& p) {
  return p.kernel_height * p.kernel_width;
}

// Packed as [block of channels][tap][kBlock], filled up with zeros. As [tap][channels], the 49 taps
// of 768 channels fell into 4 sets of L1.
long weight_floats(const Problem& p) {
  return taps_of(p) * round_up(p.in_channels, kBlock);
}

// The weights of one tap, from channel c to the end of its block.
template <class Floats>
BESTOF_INLINE Floats* weights_at(const Problem& p, Floats* packed, long tap, long c) {
  return packed + (c / kBlock * taps_of(p) + tap) * kBlock + c % kBlock;
}

template <class Element>
void pack_all(const Problem& p, const Element* w, float* packed) {
  const long taps = taps_of(p);
  for (long c = 0; c < round_up(p.in_channels, kBlock); ++c) {
    for (long tap = 0; tap < taps; ++tap)
      *weights_at(p, packed, tap, c) = c < p.in_channels ? value_of(w[c * taps + tap]) : 0.0f;
  }
}

void pack(const Problem& p, const void* weights, float* packed, int) {
  if (p.element == Element::kFloat32) return pack_all(p, floats(weights), packed);
  pack_all(p, halves(weights), packed);
}

template <class Element>
BESTOF_INLINE Vec read(const Element* from, long lanes) {
  return lanes == kLanes ? load(from) : load_first(from, lanes);
}

// Rows of an image, kLanes channels wide, as the results of one row read them: pixel j of a line is
// column j - pad_left of the image, and zero outside of it. Row y lies in line y modulo the number
// of lines, a power of 2: a division a row took as long as 20 results.
struct Lines {
  long mask = 0, pixels;

  explicit Lines(const Problem& p)
      : pixels((round_up(p.out_width, kFew) - 1) * p.stride_x +
               (p.kernel_width - 1) * p.dilation_x + 1) {
    const long read = smaller((p.kernel_height - 1) * p.dilation_y + 1, p.in_height);
    while (mask + 1 < read) mask = 2 * mask + 1;
  }

  long line_floats() const { return pixels * kLanes; }
  long floats() const { return (mask + 1) * line_floats(); }
  long at(long y) const { return (y & mask) * line_floats(); }
};

long forward_scratch(const Problem& p, int threads) {
  return threads * Lines(p).floats();
}

// Copies channels [c, c + lanes) of a row, `from` on.
template <class Element>
void copy_row(const Problem& p, const Element* from, long lanes, const Lines& lines, float* to) {
  const long first = larger(p.pad_left, 0), end = smaller(lines.pixels, p.pad_left + p.in_width);
  for (long j = first; j < end; ++j) {
    store(to + j * kLanes, read(from + (j - p.pad_left) * p.in_channels, lanes));
  }
}

// Adds pixel j of a line to the sums that read it under tap s and those behind it. Templates count,
// since GCC 12 keeps sums in memory where loops with conditions do.
template <int kResults, int kWidth, int kStride, int j, int s = 0>
BESTOF_INLINE void add_pixel(Vec pixel, const Vec* weight, Vec* sum) {
  if constexpr (s < kWidth) {
    constexpr int i = (j - s) / kStride;
    if constexpr (j >= s && (j - s) % kStride == 0 && i < kResults) sum[i] += weight[s] * pixel;
    add_pixel<kResults, kWidth, kStride, j, s + 1>(pixel, weight, sum);
  }
}

template <int kResults, int kWidth, int kStride, int j = 0>
BESTOF_INLINE void add_pixels(const float* x, const Vec* weight, Vec* sum) {
  if constexpr (j < (kResults - 1) * kStride + kWidth) {
    add_pixel<kResults, kWidth, kStride, j>(load(x + j * kLanes), weight, sum);
    add_pixels<kResults, kWidth, kStride, j + 1>(x, weight, sum);
  }
}

// Adds one row of taps to kResults sums. kWidth taps and kStride are constants where both are
// usual: then each pixel is loaded once. They are 0 otherwise.
template <int kResults, int kWidth, int kStride>
BESTOF_INLINE void add_taps(const Problem& p, const float* x, const float* w, Vec* sum) {
  if constexpr (kWidth > 0) {
    Vec weight[kWidth];
#pragma GCC unroll 7
    for (int s = 0; s < kWidth; ++s) weight[s] = load(w + s * kBlock);
    add_pixels<kResults, kWidth, kStride>(x, weight, sum);
  } else {
    const long step = p.stride_x * kLanes;
    for (long s = 0; s < p.kernel_width; ++s, x += p.dilation_x * kLanes, w += kBlock) {
      const Vec weight = load(w);
#pragma GCC unroll 14
      for (int i = 0; i < kResults; ++i) sum[i] += weight * load(x + i * step);
    }
  }
}

// What all results of one image and one vector of channels, [c, c + lanes), share.
template <class Element>
struct Strip {
  const Problem& p;
  const Epilogue& epilogue;
  const float* packed;             // the weights of channel c
  const Element* image;            // its channel c
  Element *image_result, *result;  // and those of the whole batch
  float* memory;                   // the lines
  long c, lanes;

  // Writes `count` of kResults results of row oy, from `first` on.
  template <int kResults, int kWidth, int kStride>
  void results(const Lines& lines, long oy, long first, long count) const {
    Vec sum[kResults];
#pragma GCC unroll 14
    for (int i = 0; i < kResults; ++i) sum[i] = Vec{};
    const float *x = memory + first * p.stride_x * kLanes, *w = packed;
    long y = oy * p.stride_y - p.pad_top;
    for (long r = 0; r < p.kernel_height; ++r, y += p.dilation_y, w += p.kernel_width * kBlock) {
      if (y >= 0 && y < p.in_height)  // rows outside of the image add nothing
        add_taps<kResults, kWidth, kStride>(p, x + lines.at(y), w, sum);
    }
    Element* to = image_result + (oy * p.out_width + first) * p.out_channels + c;
    const bool is_whole = count == kResults && lanes == kLanes && !epilogue.residual;
    if (is_whole && is_bounded(epilogue.activation)) {
      const Bounds bounds(epilogue.activation);
      const Vec bias = bias_at(epilogue, c);
#pragma GCC unroll 14
      for (int i = 0; i < kResults; ++i) store(to + i * p.out_channels, bounds(sum[i] + bias));
      return;
    }
    float sums[kResults * kLanes];
#pragma GCC unroll 14
    for (int i = 0; i < kResults; ++i) store(sums + i * kLanes, sum[i]);
    const auto place = [&](long i) { return to + i * p.out_channels; };
    finish_pixels(sums, kLanes, count, place, lanes, c, epilogue, result);
  }

  // Writes one row of results from lines in memory.
  template <int kWidth, int kStride>
  void row(const Lines& lines, long oy) const {
    long first = 0;
    for (; kMany > kFew && p.out_width - first >= kMany; first += kMany)
      results<kMany, kWidth, kStride>(lines, oy, first, kMany);
    for (; first < p.out_width; first += kFew)
      results<kFew, kWidth, kStride>(lines, oy, first, smaller(p.out_width - first, kFew));
  }

  template <int kWidth, int kStride>
  void rows(long begin, long end) const {
    const Lines lines(p);
    long copied = 0;  // rows of the image before this one are copied, or not read any more
    for (long oy = begin; oy < end; ++oy) {
      const long top = oy * p.stride_y - p.pad_top;
      const long behind = smaller(top + (p.kernel_height - 1) * p.dilation_y + 1, p.in_height);
      for (copied = larger(copied, top); copied < behind; ++copied) {
        copy_row(p, image + copied * p.in_width * p.in_channels, lanes, lines,
                 memory + lines.at(copied));
      }
      row<kWidth, kStride>(lines, oy);
    }
  }

  void compute(long begin, long end) const {
    const long width = p.dilation_x == 1 && p.stride_x <= 2 ? p.kernel_width : 0;
    const bool single = p.stride_x == 1;
    if (width == 3) return single ? rows<3, 1>(begin, end) : rows<3, 2>(begin, end);
    if (width == 5) return single ? rows<5, 1>(begin, end) : rows<5, 2>(begin, end);
    if (width == 7) return single ? rows<7, 1>(begin, end) : rows<7, 2>(begin, end);
    rows<0, 0>(begin, end);
  }
};

// Returns the parts into which the rows of an image are cut: so that all threads work if there are
// few images and channels, and what one part reads and writes stays in L2 while its channels pass.
// A part copies the rows that it shares with its neighbour once more.
long parts_of(const Problem& p, const Call& call, long blocks) {
  constexpr long kKeptBytes = 512 * 1024;
  const long for_threads = call.threads == 1 ? 1 : divide_up(4 * call.threads, p.batch * blocks);
  const long elements = (p.in_height * p.in_width + p.out_height * p.out_width) * p.in_channels;
  const long bytes = elements * (p.element == Element::kFloat32 ? 4 : 2);
  return smaller(larger(for_threads, divide_up(bytes, kKeptBytes)), divide_up(p.out_height, 4));
}

template <class Element>
void run(const Problem& p, const Call& call) {
  const long blocks = divide_up(p.in_channels, kLanes), parts = parts_of(p, call, blocks);
#pragma omp parallel num_threads(call.threads)
  {
    const long floats_each = Lines(p).floats();
    float* memory = call.scratch + omp_get_thread_num() * floats_each;
    for (long i = 0; i < floats_each; ++i) memory[i] = 0.0f;  // the padding stays zero
#pragma omp for schedule(static)
    for (long item = 0; item < p.batch * parts * blocks; ++item) {
      const long c = item % blocks * kLanes, part = item / blocks % parts,
                 n = item / blocks / parts;
      Element* result = static_cast<Element*>(call.result);
      const Strip<Element> strip = {p,
                                    call.epilogue,
                                    weights_at(p, floats(call.second), 0, c),
                                    static_cast<const Element*>(call.first) +
                                        n * p.in_height * p.in_width * p.in_channels + c,
                                    result + n * p.out_height * p.out_width * p.out_channels,
                                    result,
                                    memory,
                                    c,
                                    smaller(p.in_channels - c, kLanes)};
      strip.compute(part_begin(p.out_height, parts, part),
                    part_begin(p.out_height, parts, part + 1));
    }
  }
}

void run_forward(const Problem& p, const Call& call) {
  if (p.element == Element::kFloat32) return run<float>(p, call);
  run<Bfloat16>(p, call);
}

bool is_float32(const Problem& p) {
  return p.element == Element::kFloat32;
}

long backward_input_scratch(const Problem& p, int) {
  return weight_floats(p);
}

// Each element of x gathers from the results that read it, so no two threads write to one place.
void run_backward_input(const Problem& p, const Call& call) {
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
        for (long ox = 0; ox < p.out_width; ++ox) {
          const long ix = ox * p.stride_x - p.pad_left + s * p.dilation_x;
          if (ix < 0 || ix >= p.in_width) continue;
          for (long c = 0; c < p.in_channels; c += kLanes) {
            const long lanes = smaller(p.in_channels - c, kLanes);
            float* to = row + ix * p.in_channels + c;
            const Vec sum =
                read(to, lanes) + load(weights_at(p, call.scratch, r * p.kernel_width + s, c)) *
                                      read(line + ox * p.out_channels + c, lanes);
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
  const long channels = round_up(p.in_channels, kBlock), taps = taps_of(p);
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
    .forward = {run_forward, forward_scratch, lowered_flops, weight_floats, pack},
    .backward_input = {run_backward_input, backward_input_scratch, lowered_flops,
                       .supports = is_float32},
    .backward_weight = {run_backward_weight, backward_weight_scratch, lowered_flops,
                        .supports = is_float32},
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
