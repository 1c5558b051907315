// How the channels of a convolution with groups are spread over units, which are computed apart.
#pragma once
#include "conv/problem.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {

// A unit is a vector of channels if that covers several groups, and a group otherwise.
struct GroupUnits {
  long inputs, outputs;  // channels of a group
  bool shared;           // whether a unit covers several groups
  long units;
  long planes;   // vectors of a pixel that a unit reads
  long vectors;  // vectors of results of a unit

  explicit GroupUnits(const Problem& p)
      : inputs(p.in_channels / p.groups),
        outputs(p.out_channels / p.groups),
        shared(p.groups > 1 && inputs == outputs && inputs < kLanes && kLanes % inputs == 0),
        units(shared ? divide_up(p.in_channels, kLanes) : p.groups),
        planes(shared ? 1 : divide_up(inputs, kLanes)),
        vectors(shared ? 1 : divide_up(outputs, kLanes)) {}

  // The first channel of a unit, of those that are read or written, and their number.
  long first(long unit, long each) const { return unit * (shared ? kLanes : each); }
  long count(long unit, long each, long channels) const {
    return shared ? smaller(channels - unit * kLanes, kLanes) : each;
  }
};

// Names lane 0 of the group of each lane, for `__builtin_shuffle` of a vector that groups share.
BESTOF_INLINE VecInt group_lanes(long inputs) {
  VecInt from;
#pragma GCC unroll 16
  for (int l = 0; l < kLanes; ++l) from[l] = l & -static_cast<int>(inputs);
  return from;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
