// Rotary position embedding: y = x * cos + turned(x) * sin, where element i of a token is turned
// into its partner, half a token away: turned(x) = (-second half, first half). (Su et al., 2021,
// "RoFormer: enhanced transformer with rotary position embedding", equation 34, with the pairs of
// GPT-NeoX and Llama.)
#pragma once
#include "attention/head_strides.h"
#include "conv/problem.h"
#include "simd/each_isa.h"

namespace bestof {

// x is [batch][heads][tokens][size] with the numbers of a token side by side; so are cos and sin. y
// is contiguous. `size` is even.
struct RotaryProblem {
  long batch, heads, tokens, size;
  HeadStrides x, cos, sin;
  Element element;  // of all arrays
};

// y overlaps no other array.
struct RotaryCall {
  const void *x, *cos, *sin;
  void* y;
  int threads;
};

using Rotate = void(const RotaryProblem&, const RotaryCall&);

BESTOF_EACH_ISA(Rotate rotate;)

}  // namespace bestof
