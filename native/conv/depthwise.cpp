// Depthwise convolution: each group has one input and one output channel, so a vector of channels
// shares every step. The forward pass keeps the image rows that a row of results reads as float32
// in L1, one vector of channels wide, with their padding. So an element of bfloat16 is widened
// once, not once for each tap, and no result is at an edge.
#include <omp.h>

#include "conv/algorithms.h"
#include "conv/depthwise_rows.h"
#include "conv/operands.h"
#include "conv/weights.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// Packed as [block of channels][tap][kDepthwiseBlock], filled up with zeros. As [tap][channels],
// the 49 taps of 768 channels fell into 4 sets of L1.
long weight_floats(const Problem& p) {
  return taps_of(p) * round_up(p.in_channels, kDepthwiseBlock);
}

template <class Element>
void pack_all(const Problem& p, const Element* w, float* packed) {
  const long taps = taps_of(p);
  for (long c = 0; c < round_up(p.in_channels, kDepthwiseBlock); ++c) {
    for (long tap = 0; tap < taps; ++tap)
      *weights_at(p, packed, tap, c) = c < p.in_channels ? value_of(w[c * taps + tap]) : 0.0f;
  }
}

void pack(const Problem& p, const void* weights, float* packed, int) {
  if (p.element == Element::kFloat32) return pack_all(p, floats(weights), packed);
  pack_all(p, halves(weights), packed);
}

// Strides of 2^19 put pixels so far apart that the lines of a thread take gigabytes. Kernels of
// 31x31 on images of 4,096 columns need 2^21 floats.
bool supports_forward(const Problem& p) {
  constexpr long kMostLineFloats = 1 << 24;
  return Lines<kLanes>(p).floats() <= kMostLineFloats;
}

long forward_scratch(const Problem& p, int threads) {
  return threads * Lines<kLanes>(p).floats();
}

// Computes rows [begin, end) of one image; `image` is channel c of its first pixel, and `memory`
// has the lines.
template <class Element>
void compute(const Strip<kLanes, Element>& strip, const Element* image, Element* image_result,
             float* memory, long begin, long end) {
  const Problem& p = strip.p;
  const Lines<kLanes> lines(p);
  const long pitch = pixel_pitch(p, strip.epilogue);
  long copied = 0;  // rows of the image before this one are copied, or not read any more
  for (long oy = begin; oy < end; ++oy) {
    const long top = oy * p.stride_y - p.pad_top;
    const long behind = smaller(top + (p.kernel_height - 1) * p.dilation_y + 1, p.in_height);
    for (copied = larger(copied, top); copied < behind; ++copied) {
      copy_row(p, image + copied * p.in_width * p.in_channels, strip.lanes, lines,
               memory + lines.at(copied));
    }
    strip.row(lines, oy, image_result + oy * p.out_width * pitch, pitch);
  }
}

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
  const long result_plane = p.out_height * p.out_width * pixel_pitch(p, call.epilogue);
#pragma omp parallel num_threads(call.threads)
  {
    const long floats_each = Lines<kLanes>(p).floats();
    float* memory = call.scratch + omp_get_thread_num() * floats_each;
    for (long i = 0; i < floats_each; ++i) memory[i] = 0.0f;  // the padding stays zero
#pragma omp for schedule(static)
    for (long item = 0; item < p.batch * parts * blocks; ++item) {
      const long c = item % blocks * kLanes, part = item / blocks % parts,
                 n = item / blocks / parts;
      Element* result = static_cast<Element*>(call.result);
      const Strip<kLanes, Element> strip = {p,
                                            call.epilogue,
                                            weights_at(p, floats(call.second), 0, c),
                                            memory,
                                            result,
                                            c,
                                            smaller(p.in_channels - c, kLanes)};
      compute(strip,
              static_cast<const Element*>(call.first) +
                  n * p.in_height * p.in_width * p.in_channels + c,
              result + n * result_plane + c, memory, part_begin(p.out_height, parts, part),
              part_begin(p.out_height, parts, part + 1));
    }
  }
}

void run_forward(const Problem& p, const Call& call) {
  if (p.element == Element::kFloat32) return run<float>(p, call);
  run<Bfloat16>(p, call);
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
  const long channels = round_up(p.in_channels, kDepthwiseBlock), taps = taps_of(p);
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
    .forward = {run_forward, forward_scratch, lowered_flops, weight_floats, pack, supports_forward},
    .backward_input = {run_backward_input, backward_input_scratch, lowered_flops,
                       .supports = is_float32},
    .backward_weight = {run_backward_weight, backward_weight_scratch, lowered_flops,
                        .supports = is_float32},
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
