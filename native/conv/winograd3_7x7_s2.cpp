// Winograd along columns for 7x7 kernels of stride 2, forward: the first layer of ResNets, whose
// three channels leave nothing to gain along rows too, for there the transforms would work on three
// lanes of a vector.
#include <omp.h>

#include "conv/algorithms.h"
#include "conv/epilogue.h"
#include "conv/shares.h"
#include "conv/weights.h"
#include "conv/winograd_matrices.h"
#include "gemm/micro_kernel.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// Output row o is the sum of even[o + r] w[2r] and odd[o + r] w[2r + 1] over even and odd rows of
// the image. Kernels of four and three rows, the latter of four whose last is zero, whose transform
// vanishes at infinity: for three output rows that leaves 6 + 5 products of whole rows where direct
// convolution has 21. A product of rows is one of a matrix whose row is what the kernel sees of a
// row of the image, 7 pixels, which lie together.
using Axis = Winograd<3, 4>;
constexpr long kRows = Axis::kTile, kAlpha = Axis::kAlpha, kRead = 2 * kAlpha - 1, kTaps = 7,
               kStride = 2;

struct Plan {
  long tiles;       // blocks of kRows output rows of an image
  long width;       // pixels of a row that the kernel sees, pads included
  long begin, end;  // those that lie in the image
  long row;         // floats from row to row of V
  long depth;       // floats of a row under the kernel
  long panels;
};

Plan plan_rows(const Problem& p) {
  Plan plan;
  plan.tiles = divide_up(p.out_height, kRows);
  plan.width = (p.out_width - 1) * kStride + kTaps;
  plan.begin = smaller(larger(p.pad_left, 0), plan.width);
  plan.end = larger(smaller(plan.width, p.in_width + p.pad_left), plan.begin);
  plan.row = round_up(plan.width * p.in_channels + kLanes, 16);
  plan.depth = kTaps * p.in_channels;
  plan.panels = divide_up(p.out_channels, kPanel);
  return plan;
}

// Frequency i is the sum of the products of even and odd rows, the last one, infinity, of the even
// ones alone.
constexpr long images(long i) {
  return i < kAlpha - 1 ? 2 : 1;
}

long weight_floats(const Problem& p) {
  return kRead * kTaps * p.in_channels * round_up(p.out_channels, kPanel);
}

// Packed as [panel][frequency][even, odd][tap along x][channel][kPanel], in double before it is
// rounded.
void pack(const Problem& p, const float* w, float* packed, int threads) {
  constexpr long kBlock = 8;  // channels: 7 * 8 * kPanel floats of gathered weights stay in L1
  const WeightView view = forward_view(p, w);
  const Plan plan = plan_rows(p);
  const long parts = divide_up(view.inputs, kBlock);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long item = 0; item < plan.panels * kTaps * parts; ++item) {
    const long panel = item / (kTaps * parts), tap = item / parts % kTaps,
               begin = item % parts * kBlock;
    float gathered[kTaps][kBlock * kPanel];
    WeightView part = view;
    part.inputs = smaller(view.inputs - begin, kBlock);
    const float* from = view.data + begin * view.input_stride + tap * view.x_stride;
    for (long r = 0; r < kTaps; ++r)
      pack_panel(part, from + r * view.y_stride, panel * kPanel, gathered[r]);
    float* to = packed + (panel * kRead * kTaps + tap) * view.inputs * kPanel + begin * kPanel;
    for (long i = 0; i < kAlpha; ++i) {
      for (long image = 0; image < images(i); ++image, to += plan.depth * kPanel) {
        for (long at = 0; at < part.inputs * kPanel; ++at) {
          double sum = 0.0;
          for (long r = image; r < kTaps; r += 2)
            sum += Axis::kMatrices.g[i][r / 2] * gathered[r][at];
          to[at] = static_cast<float>(sum);
        }
      }
    }
  }
}

long scratch(const Problem& p, int threads) {
  return threads * kRead * plan_rows(p).row;
}

// V of the kRead rows of an image from y on, [frequency of even rows, then of odd ones][row]: what
// lies outside the image is zero, left and right of it from the beginning on; and so is what none
// of the `rows` wanted reads, for a NaN there would be in all of them.
void transform_input(const Problem& p, const Plan& plan, const float* image, long y, long rows,
                     float* v) {
  const long bottom = smaller(p.in_height, y + (rows - 1) * kStride + kTaps);
  const long count = (plan.end - plan.begin) * p.in_channels, line = p.in_width * p.in_channels,
             step = plan.row;
  const float* from = image + y * line + (plan.begin - p.pad_left) * p.in_channels;
  float* to = v + plan.begin * p.in_channels;
  for (long at = 0; at < count; at += kLanes) {
    const long lanes = smaller(count - at, kLanes);
    Vec even[kAlpha], odd[kAlpha] = {}, o[kAlpha];
#pragma GCC unroll 16
    for (long i = 0; i < kRead; ++i) {
      const bool inside = y + i >= 0 && y + i < bottom;
      const float* pixels = from + i * line + at;
      (i % 2 == 0 ? even : odd)[i / 2] = !inside           ? Vec{}
                                         : lanes == kLanes ? load(pixels)
                                                           : load_first(pixels, lanes);
    }
    Axis::input(even, o);
#pragma GCC unroll 8
    for (long i = 0; i < kAlpha; ++i) store(to + i * step + at, o[i]);
    Axis::input(odd, o);
#pragma GCC unroll 8
    for (long i = 0; i < kAlpha - 1; ++i) store(to + (kAlpha + i) * step + at, o[i]);
  }
}

// R pixels of `rows` output rows, one panel: the products of all frequencies, which stay in L1, and
// their results.
template <int R>
void multiply_pixels(const Problem& p, const Plan& plan, const float* v, const float* u, long rows,
                     long k, const Epilogue& given, const float* result, float* out) {
  const Epilogue epilogue = given;
  const long out_row = p.out_width * p.out_channels, left = smaller(p.out_channels - k, kPanel);
  for (long r = 0; r < rows; ++r) {  // met cold, results hold up the stores
    for (long i = 0; i < R; ++i) {
      for (long j = 0; j < left; j += 16)
        __builtin_prefetch(out + r * out_row + i * p.out_channels + j, 1, 3);
    }
  }
  Accumulator<R> products[kAlpha];
  for (long i = 0; i < kAlpha; ++i) {
    const float* pixels[2] = {v + i * plan.row, v + (kAlpha + i) * plan.row};
    const TileRows<float> tile = {pixels, 1, 0, kStride * p.in_channels};
    Accumulator<R> acc;
    multiply<Walk::kRegular>(acc, tile, images(i), plan.depth, u, nullptr);
    products[i] = acc;
    u += images(i) * plan.depth * kPanel;
  }
  for (long i = 0; i < R; ++i) {
    for (long j = 0; j < kPanelVectors; ++j) {
      const long lanes = smaller(left - j * kLanes, kLanes);
      if (lanes <= 0) break;
      Vec d[kAlpha], o[kRows];
#pragma GCC unroll 8
      for (long f = 0; f < kAlpha; ++f) d[f] = products[f].v[i][j];
      Axis::output(d, o);
#pragma GCC unroll 8
      for (long r = 0; r < kRows; ++r) {
        float* to = out + r * out_row + i * p.out_channels + j * kLanes;
        if (r < rows) finish(o[r], to, lanes, k + j * kLanes, epilogue, result);
      }
    }
  }
}

template <int R>
BESTOF_INLINE void multiply_count(long count, const Problem& p, const Plan& plan, const float* v,
                                  const float* u, long rows, long k, const Epilogue& epilogue,
                                  const float* result, float* out) {
  if constexpr (R > 0) {
    if (count == R) return multiply_pixels<R>(p, plan, v, u, rows, k, epilogue, result, out);
    multiply_count<R - 1>(count, p, plan, v, u, rows, k, epilogue, result, out);
  }
}

// Every thread takes kRows output rows of an image at a time, from the input to the output.
void run_forward(const Problem& p, const Call& call) {
  const Plan plan = plan_rows(p);
  const TileCut cut = cut_rows(p.out_width);
  Shares shares(p.batch * plan.tiles, call.threads);
#pragma omp parallel num_threads(call.threads)
  {
    const long thread = omp_get_thread_num();
    float* v = call.scratch + thread * kRead * plan.row;
    for (long i = 0; i < kRead * plan.row; ++i) v[i] = 0.0f;
    for (long item = shares.take(thread); item >= 0; item = shares.take(thread)) {
      const long n = item / plan.tiles, y = item % plan.tiles * kRows,
                 rows = smaller(p.out_height - y, kRows);
      const float* image = call.first + n * p.in_height * p.in_width * p.in_channels;
      transform_input(p, plan, image, y * kStride - p.pad_top, rows, v);
      for (long panel = 0; panel < plan.panels; ++panel) {
        const float* u = call.second + panel * kRead * plan.depth * kPanel;
        for (long tile = 0; tile < cut.tiles; ++tile) {
          const long x = cut.begin(tile);
          float* out = call.result + ((n * p.out_height + y) * p.out_width + x) * p.out_channels +
                       panel * kPanel;
          multiply_count<kTileRows>(cut.begin(tile + 1) - x, p, plan,
                                    v + x * kStride * p.in_channels, u, rows, panel * kPanel,
                                    call.epilogue, call.result, out);
        }
      }
    }
  }
}

double flops(const Problem& p) {
  const double tiles = static_cast<double>(p.batch) * divide_up(p.out_height, kRows) * p.out_width;
  return 2.0 * kRead * kTaps * tiles * p.in_channels * p.out_channels;
}

}  // namespace

const Passes passes::winograd3_7x7_s2 = {
    .forward = {run_forward, scratch, flops, weight_floats, pack},
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
