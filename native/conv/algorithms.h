// Declares the passes of every algorithm of conv/algorithms.inc, in the instruction set that is
// being compiled. An instruction set that compiles only a few of them takes the others from the one
// that BESTOF_REST names.
#pragma once
#include "conv/algorithm.h"
#include "simd/vector.h"

namespace bestof {

#define BESTOF_ALGORITHM(name, space, ...) \
  namespace space {                        \
  namespace passes {                       \
  extern const Passes name;                \
  }                                        \
  }
#include "conv/algorithms.inc"
#undef BESTOF_ALGORITHM

}  // namespace bestof
