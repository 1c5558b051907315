// Implicit GEMM: the reduction runs over taps and channels of pixels that are read where they lie.
// Only pixels whose rows would collide in L1 are copied. Takes any kernel, stride, dilation, pad
// and groups.
//
// Tensors of bfloat16 are widened, forward: all of x if taps share pixels, else block by block. A
// Xeon 207 multiplies float32 1.7 times as fast as pairs of bfloat16.
#include "conv/algorithms.h"
#include "conv/lowered_weight.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

bool copies(const Problem& p) {
  const bool is_widened = p.element == Element::kBfloat16;
  return rows_collide<float>(p.stride_x * p.in_channels) ||
         (is_widened && p.kernel_height * p.kernel_width == 1);
}

void pack(const Problem& p, const void* w, float* packed, int threads) {
  if (p.element == Element::kFloat32) return pack_forward(p, w, packed, threads);
  pack_weights(forward_view(p, halves(w)), packed, threads);
}

long forward_scratch(const Problem& p, int threads) {
  return copies(p) ? forward_grid_floats<float, true>(p, threads)
                   : forward_grid_floats<float, false>(p, threads);
}

template <class Element>
void run(const Problem& p, const Element* x, Element* y, const Call& call) {
  const auto run = copies(p) ? run_forward_grid<float, true, Element, Element>
                             : run_forward_grid<float, false, Element, Element>;
  run(p, x, floats(call.second), y, call.epilogue, call.scratch, call.threads);
}

void run_forward(const Problem& p, const Call& call) {
  if (p.element == Element::kFloat32) return run(p, floats(call.first), floats(call.result), call);
  run(p, halves(call.first), halves(call.result), call);
}

// The input gradient with stride s. Rows of x that are congruent modulo s see the same taps. So x
// consists of stride_y * stride_x phases. Each is a convolution of the gradient with stride 1 and a
// part of the kernel.
struct Phase {
  long count;          // taps on this axis
  long extent, first;  // grid points, and the first place in x
};

// Fills `taps` with the kernel positions that phase `phase` sees, and `offsets` with where each
// reads the gradient.
Phase axis_phase(long phase, long stride, long dilation, long pad, long kernel, long extent,
                 long* taps, long* offsets) {
  Phase result = {0, extent > phase ? divide_up(extent - phase, stride) : 0, phase};
  for (long t = 0; t < kernel; ++t) {
    const long distance = phase + pad - t * dilation;
    if (distance % stride != 0) continue;
    taps[result.count] = t;
    offsets[result.count++] = distance / stride;
  }
  return result;
}

long axis_floats(const Problem& p) {
  return round_up(4 * (p.kernel_height + p.kernel_width), 16);
}

long backward_input_scratch(const Problem& p, int threads) {
  const long inputs = p.out_channels / p.groups, outputs = p.in_channels / p.groups;
  const long taps = p.kernel_height * p.kernel_width;
  long most = 0;  // over the phases, which differ in taps: blocks depend on them
  for (long t = 1; t <= taps; ++t) {
    const long pixels =
        p.batch * divide_up(p.in_height, p.stride_y) * divide_up(p.in_width, p.stride_x);
    for (long fewer = 0; fewer < 3; ++fewer) {
      const long own =
          fewer == 0   ? pixels
          : fewer == 1 ? p.batch * (p.in_height / p.stride_y) * divide_up(p.in_width, p.stride_x)
                       : p.batch * divide_up(p.in_height, p.stride_y) * (p.in_width / p.stride_x);
      most = larger(most, grid_scratch<float>(larger(own, 1), t, inputs, p.out_channels, outputs,
                                              false, 0, threads)
                              .total);
    }
    const long both = p.batch * (p.in_height / p.stride_y) * (p.in_width / p.stride_x);
    most = larger(most, grid_scratch<float>(larger(both, 1), t, inputs, p.out_channels, outputs,
                                            false, 0, threads)
                            .total);
  }
  return axis_floats(p) + round_up(packed_floats(p.groups, outputs, inputs, taps), 16) + most;
}

// Writes zero to the grid points that no tap reaches.
void clear_grid(const Grid& g, float* output) {
  for (long n = 0; n < g.batch; ++n) {
    for (long j = 0; j < g.rows; ++j) {
      float* line =
          output + ((n * g.out_height + g.first_y + j * g.out_step_y) * g.out_width + g.first_x) *
                       g.out_channels;
      for (long i = 0; i < g.columns; ++i) {
        __builtin_memset(line + i * g.out_step_x * g.out_channels, 0,
                         g.out_channels * sizeof(float));
      }
    }
  }
}

void run_backward_input(const Problem& p, const Call& call) {
  const long inputs = p.out_channels / p.groups, outputs = p.in_channels / p.groups;
  long* taps_y = reinterpret_cast<long*>(call.scratch);
  long* taps_x = taps_y + p.kernel_height;
  // The offsets need two more arrays of the same lengths.
  long* dy = taps_x + p.kernel_width;
  long* dx = dy + p.kernel_height;
  float* packed = call.scratch + axis_floats(p);
  WeightView view = forward_view(p, floats(call.second));
  const long output_stride = view.output_stride;
  view.outputs = outputs;
  view.output_stride = 1;
  view.inputs = inputs;
  view.input_stride = output_stride;
  const long panels = divide_up(outputs, kPanel);
  for (long phase = 0; phase < p.stride_y * p.stride_x; ++phase) {
    const Phase y = axis_phase(phase / p.stride_x, p.stride_y, p.dilation_y, p.pad_top,
                               p.kernel_height, p.in_height, taps_y, dy);
    const Phase x = axis_phase(phase % p.stride_x, p.stride_x, p.dilation_x, p.pad_left,
                               p.kernel_width, p.in_width, taps_x, dx);
    const Grid grid = {p.batch,        y.extent, x.extent,    p.out_height, p.out_width,
                       p.out_channels, 1,        1,           dy,           dx,
                       y.count,        x.count,  p.in_height, p.in_width,   p.in_channels,
                       p.in_channels,  y.first,  x.first,     p.stride_y,   p.stride_x};
    const long taps = y.count * x.count;
    if (taps == 0) {
      clear_grid(grid, floats(call.result));
      continue;
    }
#pragma omp parallel for schedule(static) num_threads(call.threads)
    for (long item = 0; item < p.groups * panels; ++item) {
      float* to = packed + item * taps * inputs * kPanel;
      for (long tap = 0; tap < taps; ++tap, to += inputs * kPanel) {
        const float* from = view.data + item / panels * view.group_stride +
                            taps_y[tap / x.count] * view.y_stride +
                            taps_x[tap % x.count] * view.x_stride;
        pack_panel(view, from, item % panels * kPanel, to);
      }
    }
    const Epilogue none = {nullptr, nullptr, Activation::kNone, 0.0f};
    float* scratch = packed + round_up(packed_floats(p.groups, outputs, inputs, taps), 16);
    convolve_grid<float, false>(grid, floats(call.first), packed, floats(call.result), p.groups,
                                none, scratch, call.threads);
  }
}

long backward_weight_scratch(const Problem& p, int) {
  return weight_in_place_floats(p);
}

}  // namespace

const Passes passes::convgemm = {
    .forward = {run_forward, forward_scratch, lowered_flops, weight_floats, pack},
    .backward_input = {run_backward_input, backward_input_scratch, lowered_flops,
                       .supports = is_float32},
    .backward_weight = {run_weight_in_place, backward_weight_scratch, lowered_flops,
                        .supports = is_float32},
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
