// Which calls of an operator bestof chooses for.
#pragma once
#include <cstdint>

#include "operator_call.h"

namespace shim {

// How a shim treats the calls of an operation. PyTorch's own kernel answers all that no rule
// chooses, without Python: small ones above all.
struct Rule {
  const char* name;
  // Returns whether bestof may choose for a call of at least `least` units of work.
  bool (*chooses)(const OperatorCall& call, double least);
  // Calls of one look that PyTorch answers before Python is asked about it. Programs whose shapes
  // never repeat thus never ask.
  uint32_t until_asked;
  // Whether a decision depends on whether weights may stay as they are: no gradient is recorded or
  // computed by this thread.
  bool by_inference;
  // Whether a decision depends on whether gradients are recorded.
  bool by_training;
  // Whether Python answers, in place of PyTorch's kernel, calls for which the table has no place
  // left and those that a kernel refuses, as after `use_isa`.
  bool asks_when_stuck;
  uint64_t places;  // of KnownCalls
};

// Returns null for an unknown name.
//
// "elements": the work is the elements of the largest operand.
// "product": (operation, bias, a, b) of dense matrices in float32, bfloat16 or float16; the work is
//     their multiply-adds.
// "product, float16 emulated" and "product, short types emulated": the same on processors without
//     instructions for these types, whose products are chosen for from a quarter of the work on.
// "attention": (q, k, v, ...) and "attention backward": (gradient, q, k, v, ...) in these types,
//     without dropout; the work is the multiply-adds of one of both products.
// "convolution": (0, arguments of the convolution) or (1, arguments of its backward). All of images
//     are chosen for, unless they are transposed. The work of others is the multiplications of an
//     ordinary one of stride 1: each weight meets about every element of a channel.
const Rule* find_rule(const char* name);

}  // namespace shim
