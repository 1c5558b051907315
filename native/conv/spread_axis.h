// One axis of a spread image: a copy of the input in which a tap is a shift.
//
// Pixels that a tap reads for neighbouring results are `stride` apart in the input. The copy holds
// the pixels of each remainder modulo the stride in a plane of its own, so there they are
// neighbours. Zeros stand where the input is padded. A line (of pixels, or of rows of one image)
// takes out + reach positions, and the next line begins where only zeros are left: the padding
// behind one line is the padding before the next.
//
// So result i of line j is at position j * length + i, and reads tap t at this position + shift(t)
// in plane(t). Positions out to length of a line belong to no result.
#pragma once
#include "conv/problem.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {

struct SpreadAxis {
  long in, out, taps, stride, dilation, pad;
  long planes;  // those that a tap reads
  long reach;   // the largest shift
  long length;  // the distance of lines
  long shared;  // positions that a line shares with the next

  BESTOF_INLINE long shift(long tap) const { return tap * dilation / stride; }
  BESTOF_INLINE long plane(long tap) const { return tap % planes; }

  // Positions [begin, end) of a line hold pixels of the input, the others zeros. Position q of a
  // plane is pixel q * stride + first(plane).
  BESTOF_INLINE long first(long plane) const { return plane * dilation % stride - pad; }
  BESTOF_INLINE long begin(long plane) const {
    return smaller(larger(divide_up(-first(plane), stride), 0), out + reach);
  }
  BESTOF_INLINE long end(long plane) const {
    const long behind = larger(divide_up(in - first(plane), stride), 0);
    return larger(smaller(behind, out + reach), begin(plane));
  }
};

inline SpreadAxis spread_axis(long in, long out, long taps, long stride, long dilation, long pad) {
  SpreadAxis a = {in, out, taps, stride, dilation, pad, 1, (taps - 1) * dilation / stride, 0, 0};
  // Tap t + period reads the plane of tap t.
  while (a.planes < taps && a.planes * dilation % stride != 0) ++a.planes;
  a.shared = a.reach;
  for (long plane = 0; plane < a.planes; ++plane) {
    const long before = a.begin(plane), behind = out + a.reach - a.end(plane);
    a.shared = smaller(a.shared, smaller(before, behind));
  }
  a.length = out + a.reach - a.shared;
  return a;
}

// Whether what one line of results reads, spread, takes less than 1 GiB, with `copies` elements of
// 2 bytes for each channel. Taps far outside of the image would need memory for the zeros between.
inline bool spread_is_small(const Problem& p, int copies) {
  const auto positions = [](long out, long taps, long stride, long dilation) {
    const double reach = 1.0 * (taps - 1) * dilation / stride;
    return (out + reach + 1) * smaller(taps, stride);
  };
  const double line = positions(p.out_width, p.kernel_width, p.stride_x, p.dilation_x);
  const double lines = positions(1, p.kernel_height, p.stride_y, p.dilation_y);
  const double bytes = 2.0 * copies * (p.in_channels + 32.0 * p.groups);
  return line * lines * bytes < 1 << 30;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
