#include "bindings/problem.h"

#include <cmath>
#include <utility>

#include "bindings/module.h"

namespace bestof {

Direction direction_of(const std::string& name) {
  if (name == "forward") return Direction::kForward;
  if (name == "backward_input") return Direction::kBackwardInput;
  if (name == "backward_weight") return Direction::kBackwardWeight;
  refuse("direction: expected forward, backward_input or backward_weight; got " + name);
}

const Pass& pass_of(const Algorithm& algorithm, Direction direction) {
  const Passes& passes = *algorithm.passes;
  if (direction == Direction::kForward) return passes.forward;
  return direction == Direction::kBackwardInput ? passes.backward_input : passes.backward_weight;
}

#define BESTOF_ACTIVATION(enumerator, name, falls, result) {name, Activation::enumerator},
const std::pair<const char*, Activation> kActivations[] = {
#include "conv/activations.inc"
};
#undef BESTOF_ACTIVATION

Activation activation_of(const std::string& name) {
  std::string names;
  for (const auto& [known, activation] : kActivations) {
    if (name == known) return activation;
    if (*known) names += (names.empty() ? "" : ", ") + std::string(known);
  }
  refuse("activation: expected " + names + "; got " + name);
}

bool may_fall(Activation activation, float slope) {
  switch (activation) {
#define BESTOF_ACTIVATION(enumerator, name, falls, result) \
  case Activation::enumerator:                             \
    return falls;
#include "conv/activations.inc"
#undef BESTOF_ACTIVATION
  }
  return true;
}

long axis_extent(const char* axis, long extent, long before, long after, long kernel, long stride,
                 long dilation) {
  const long room = extent + before + after - dilation * (kernel - 1) - 1;
  if (room < 0) {
    refuse(std::string("w: expected a kernel that fits the padded input; its ") + axis + " of " +
           std::to_string(kernel) + " with dilation " + std::to_string(dilation) + " exceeds " +
           std::to_string(extent + before + after));
  }
  return room / stride + 1;
}

Element element_of(const std::string& name) {
  if (name == "float32") return Element::kFloat32;
  if (name == "bfloat16") return Element::kBfloat16;
  refuse("dtype: expected float32 or bfloat16; got " + name);
}

std::vector<std::tuple<std::string, std::string, std::string>> names_of(
    const DtypeColumns& dtypes) {
  std::vector<std::tuple<std::string, std::string, std::string>> named;
  for (int i = 0; i < dtypes.count; ++i) {
    const Dtypes& one = dtypes.rows[i];
    named.emplace_back(name_of(one.operands), name_of(one.result), name_of(one.sums));
  }
  return named;
}

// Refuses shapes and numbers that no problem can have.
void check_extents(const Shape& x, const Shape& w, const Shape& numbers, bool planes) {
  constexpr long kMost =
      1L << 31;  // keeps every product of extents that is formed below within 64 bits
  if (x.size() != 4) {
    refuse(std::string("x: expected 4 dimensions ") + (planes ? "(N, C, H, W)" : "(N, H, W, C)") +
           "; got shape " + describe(x));
  }
  if (w.size() != 4)
    refuse("w: expected 4 dimensions (O, H, W, C / groups); got shape " + describe(w));
  if (numbers.size() != 9) refuse("numbers: expected 9");
  for (int i = 0; i < 4; ++i) {
    if (x[i] < (i == 0 ? 0 : 1) || x[i] >= kMost)
      refuse("x: expected extents of at least 1 (batch: 0); got " + describe(x));
    if (w[i] < 1 || w[i] >= kMost) refuse("w: expected extents of at least 1; got " + describe(w));
  }
  const char* names[] = {"stride",  "stride",   "padding",  "padding", "padding",
                         "padding", "dilation", "dilation", "groups"};
  for (int i = 0; i < 9; ++i) {
    const long least = i >= 2 && i < 6 ? 0 : 1;
    if (numbers[i] < least || numbers[i] >= kMost) {
      refuse(std::string(names[i]) + ": expected " + (least ? "positive" : "non-negative") +
             " integers; got " + std::to_string(numbers[i]));
    }
  }
}

Problem make_problem(const Shape& x, const Shape& w, const Shape& numbers, const std::string& dtype,
                     bool planes) {
  check_extents(x, w, numbers, planes);
  Problem p;
  p.element = element_of(dtype);
  p.batch = x[0];
  p.planes = planes;
  p.in_height = x[planes ? 2 : 1];
  p.in_width = x[planes ? 3 : 2];
  p.in_channels = x[planes ? 1 : 3];
  p.out_channels = w[0];
  p.kernel_height = w[1];
  p.kernel_width = w[2];
  p.stride_y = numbers[0];
  p.stride_x = numbers[1];
  p.pad_top = numbers[2];
  p.pad_bottom = numbers[3];
  p.pad_left = numbers[4];
  p.pad_right = numbers[5];
  p.dilation_y = numbers[6];
  p.dilation_x = numbers[7];
  p.groups = numbers[8];
  if (p.in_channels % p.groups || p.out_channels % p.groups) {
    refuse("groups: expected a divisor of " + std::to_string(p.in_channels) + " input and " +
           std::to_string(p.out_channels) + " output channels; got " + std::to_string(p.groups));
  }
  if (w[3] != p.in_channels / p.groups) {
    refuse("w: expected " + std::to_string(p.in_channels / p.groups) + " channels (those of x, " +
           std::to_string(p.in_channels) + ", by groups, " + std::to_string(p.groups) + "); got " +
           std::to_string(w[3]));
  }
  p.out_height = axis_extent("height", p.in_height, p.pad_top, p.pad_bottom, p.kernel_height,
                             p.stride_y, p.dilation_y);
  p.out_width = axis_extent("width", p.in_width, p.pad_left, p.pad_right, p.kernel_width,
                            p.stride_x, p.dilation_x);
  // No machine holds 2^40 elements, and scratch may be a multiple of them.
  const double most = std::ldexp(1.0, 40);
  const double in = 1.0 * p.batch * p.in_height * p.in_width * p.in_channels;
  const double out = 1.0 * p.batch * p.out_height * p.out_width * p.out_channels;
  const double taps = 1.0 * p.kernel_height * p.kernel_width;
  if (in > most || out > most || taps * p.out_channels * w[3] > most ||
      taps > std::ldexp(1.0, 24)) {
    refuse("x: expected a problem of fewer than 2^40 elements; got x " + describe(x) + " and w " +
           describe(w));
  }
  return p;
}

void expect_pitch(long pitch, long channels) {
  if (pitch >= channels) return;
  refuse("pitch: expected " + std::to_string(channels) + " or more; got " + std::to_string(pitch));
}

Shape x_shape(const Problem& p) {
  if (p.planes) return {p.batch, p.in_channels, p.in_height, p.in_width};
  return {p.batch, p.in_height, p.in_width, p.in_channels};
}
Shape w_shape(const Problem& p) {
  return {p.out_channels, p.kernel_height, p.kernel_width, p.in_channels / p.groups};
}
Shape y_shape(const Problem& p) {
  return {p.batch, p.out_height, p.out_width, p.out_channels};
}

std::string describe_problem(const Problem& p) {
  return "x " + describe(x_shape(p)) + ", w " + describe(w_shape(p)) + ", stride (" +
         std::to_string(p.stride_y) + ", " + std::to_string(p.stride_x) + "), dilation (" +
         std::to_string(p.dilation_y) + ", " + std::to_string(p.dilation_x) + "), groups " +
         std::to_string(p.groups) + (p.element == Element::kBfloat16 ? ", bfloat16" : "") +
         (p.planes ? ", x in channels first" : "");
}

const Algorithm& find_algorithm(const std::string& name, Direction direction, const Problem& p) {
  std::string names;
  for (int i = 0; i < kernels().algorithm_count; ++i) {
    const Algorithm& algorithm = kernels().algorithms[i];
    if (!applies(algorithm, pass_of(algorithm, direction), p)) continue;
    if (name == algorithm.name) return algorithm;
    names += std::string(names.empty() ? "" : ", ") + algorithm.name;
  }
  refuse("algorithm: expected one that applies to " + describe_problem(p) + " (" + names +
         "); got " + name);
}

const Pass& find_pass(const std::string& name, Direction direction, const Problem& p) {
  return pass_of(find_algorithm(name, direction, p), direction);
}

}  // namespace bestof
