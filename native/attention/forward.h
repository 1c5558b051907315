// Attention: softmax(scale q k^T + mask) v, without the matrix of all scores.
//
// A part of the queries of one head passes over the keys in blocks. Each block gives scores for
// some rows of queries, which stay in L1. A row keeps the maximum of its scores and the sum of
// their exponentials so far. When a block raises the maximum, both the sum and the results so far
// are multiplied by exp(old - new).
#pragma once
#include "attention/head_strides.h"
#include "conv/problem.h"
#include "simd/each_isa.h"

namespace bestof {

// Strides of 0 repeat the mask along an axis.
struct MaskStrides {
  long batch, head, query, key;
};

// Head h of the queries uses head h / (heads / shared_heads) of the keys and values.
struct Attention {
  long batch, heads, shared_heads, queries, keys, size;
  HeadStrides q, k, v, out, logsumexp;
  MaskStrides mask;
  bool causal;  // query i sees the keys 0 to i
  float scale;
  Element element = Element::kFloat32;  // of q, k, v and the results
  Element mask_element = Element::kFloat32;
};

// The most queries whose keys and values are not packed.
constexpr long kFewQueries = 4;

struct AttentionCall {
  const void *q, *k, *v;
  const void* mask;  // added to the scores; or null
  void* out;
  float* logsumexp;  // log of the sum of the exponentials of each query; or null
  float* scratch;
  int threads;
};

// A query that sees no key, or only scores of -infinity, has the result 0 and the logsumexp 0, as
// in PyTorch.
struct AttentionPass {
  void (*run)(const Attention&, const AttentionCall&) = nullptr;
  long (*scratch_floats)(const Attention&, int threads) = nullptr;
};

BESTOF_EACH_ISA(extern const AttentionPass attention;)
BESTOF_EACH_ISA(extern const AttentionPass attention_bf16;)  // of elements of bfloat16

}  // namespace bestof
