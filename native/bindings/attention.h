// What the bindings of both passes of attention share.
#pragma once
#include <vector>

#include "attention/forward.h"
#include "bindings/problem.h"

namespace bestof {

// The arguments of attention; `mask` and `logsumexp` may be null.
struct AttentionOperands {
  const Array &q, &k, &v, &out;
  const Array *mask, *logsumexp;
};

// Checks shapes and strides.
Attention make_attention(const AttentionOperands& given, bool causal, double scale,
                         Element element = Element::kFloat32,
                         Element mask_element = Element::kFloat32);

// Checks the shape and strides of an array of results.
HeadStrides result_strides(const Array& array, const char* name, const std::vector<long>& shape);
HeadStrides strides_of(const Array& array);

// Strides with which an array of at most 4 axes is read for `shape`, to which it broadcasts.
MaskStrides broadcast(const Array& array, const char* name, const std::vector<long>& shape);

// Checks that the last axis is contiguous.
void expect_side_by_side(const Array& array, const char* name);
Array described(const Shape& shape, const Shape& strides, const char* name);

}  // namespace bestof
