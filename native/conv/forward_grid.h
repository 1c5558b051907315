// A forward pass as a grid of rows times packed weights. Rows of the table that use it differ only
// in how they read rows.
#pragma once
#include "conv/lowered.h"

namespace bestof {
namespace BESTOF_TARGET {

// The offsets of the taps of one axis of a forward pass.
inline void tap_offsets(long taps, long dilation, long pad, long* offsets) {
  for (long t = 0; t < taps; ++t) offsets[t] = t * dilation - pad;
}

// The grid of a forward pass; dy and dx are filled in, kernel_height and kernel_width long. pitch:
// elements from one pixel of the results to the next.
inline Grid forward_grid(const Problem& p, long* dy, long* dx, long pitch) {
  tap_offsets(p.kernel_height, p.dilation_y, p.pad_top, dy);
  tap_offsets(p.kernel_width, p.dilation_x, p.pad_left, dx);
  return {p.batch,
          p.out_height,
          p.out_width,
          p.in_height,
          p.in_width,
          p.in_channels,
          p.stride_y,
          p.stride_x,
          dy,
          dx,
          p.kernel_height,
          p.kernel_width,
          p.out_height,
          p.out_width,
          p.out_channels,
          pitch,
          0,
          0,
          1,
          1};
}

BESTOF_INLINE long tap_floats(const Problem& p) {
  return round_up(2 * (p.kernel_height + p.kernel_width), 16);
}

// Runs a forward pass by a grid. Rows of the table differ in `kCopy` and the elements.
template <class In, bool kCopy>
inline long forward_grid_floats(const Problem& p, int threads) {
  const bool is_same = (sizeof(In) == sizeof(float)) == (p.element == Element::kFloat32);
  const bool round = !kCopy && !is_same;
  return tap_floats(p) +
         grid_scratch<In>(p.batch * p.out_height * p.out_width, p.kernel_height * p.kernel_width,
                          p.in_channels / p.groups, p.in_channels, p.out_channels / p.groups, kCopy,
                          round ? p.batch * p.in_height * p.in_width * p.in_channels : 0, threads)
             .total;
}

template <class In, bool kCopy, class From, class Out>
inline void run_forward_grid(const Problem& p, const From* x, const In* packed, Out* y,
                             const Epilogue& epilogue, float* scratch, int threads) {
  long* dy = reinterpret_cast<long*>(scratch);
  const Grid grid = forward_grid(p, dy, dy + p.kernel_height, pixel_pitch(p, epilogue));
  convolve_grid<In, kCopy>(grid, x, packed, y, p.groups, epilogue, scratch + tap_floats(p),
                           threads);
}

inline long weight_floats(const Problem& p) {
  return packed_floats(p.groups, p.out_channels / p.groups, p.in_channels / p.groups,
                       p.kernel_height * p.kernel_width);
}

inline void pack_forward(const Problem& p, const void* w, float* packed, int threads) {
  pack_weights(forward_view(p, floats(w)), packed, threads);
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
