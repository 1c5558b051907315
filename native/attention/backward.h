// The gradients of attention. The weights are computed again from the logsumexp of each query, so
// no matrix of all scores is kept or written.
//
// With the weights W, the results O = W V and their gradients G, a score has the gradient
// D = W * (G V^T - sum(G * O)), where the sum is that of the query. Then
//   dV = W^T G,   dQ = scale D K,   dK = scale D^T Q.
// A thread computes the gradients of one head of keys and values, by all queries that share it.
// Gradients of bfloat16 are rounded once. Tile registers, and vectors of pairs, multiply bfloat16
// itself, so W and D are rounded too. Elsewhere operands are widened to float32, a head at a time.
// Tile registers multiply float32 as the sum of three parts of bfloat16, at the accuracy of
// float32. Sums are float32.
#pragma once
#include "attention/forward.h"

namespace bestof {

// `of` describes the operands, the results and their logsumexp.
struct AttentionBackward {
  Attention of;
  HeadStrides gradient, dq, dk, dv;
};

struct AttentionBackwardCall {
  const void *gradient, *q, *k, *v, *out;
  const float* logsumexp;
  const void* mask;  // or null
  void *dq, *dk, *dv;
  float* scratch;
  int threads;
};

// Gradients are added to those of no other head: an element of dq, dk and dv is written by one
// thread.
struct AttentionBackwardPass {
  void (*run)(const AttentionBackward&, const AttentionBackwardCall&) = nullptr;
  long (*scratch_floats)(const AttentionBackward&, int threads) = nullptr;
};

BESTOF_EACH_ISA(extern const AttentionBackwardPass attention_backward;)

}  // namespace bestof
