// Declares every algorithm of gemm/algorithms.inc, in the instruction set that is being compiled.
#pragma once
#include "gemm/algorithm.h"
#include "simd/vector.h"

namespace bestof {

#define BESTOF_PRODUCT(name, space, ...) \
  namespace space {                      \
  namespace products {                   \
  extern const ProductPass name;         \
  }                                      \
  }
#include "gemm/algorithms.inc"
#undef BESTOF_PRODUCT

}  // namespace bestof
