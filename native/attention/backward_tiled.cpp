// The gradients of attention where there are tile registers: by these, or by the kernel of another
// instruction set for few queries or keys of float32 and for heads that cannot be split into parts.
#include "attention/backward.h"
#include "attention/split_numbers.h"
#include "attention/whole_gradients.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

namespace rest = BESTOF_REST;

// Fewer queries do not fill the tiles.
constexpr long kLeastQueries = 64;

// Whether vectors take less time, in ns for each number of a head. Products take 1/19 ns for a
// query and a key by vectors, and 1/35 by tiles, which are padded to 32. What is done once for each
// query and each key takes 1.3 and 2 ns. (One thread of a Xeon. With 1,024 queries of 64 numbers,
// tiles took 1.9 times as long for 1 key, 1.4 for 16, 1.2 for 32, and 0.8 for 1,024.)
bool is_by_vectors(const AttentionBackward& p) {
  const Attention& of = p.of;
  if (of.element != Element::kFloat32) return false;
  if (of.queries < kLeastQueries || of.size == 0) return true;
  const long first = seen_by(of, 0), last = seen_by(of, of.queries - 1);
  const double queries = round_up(of.queries, kTileDepth);
  const double padding = 1.0 * round_up(of.size, kTileDepth) / of.size;
  const double seen = 0.5 * (first + last);
  const double seen_by_tiles = 0.5 * (round_up(first, kTileDepth) + round_up(last, kTileDepth));
  const double vectors = of.queries * seen / 19 + 1.3 * (of.queries + of.keys);
  const double tiles = padding * (queries * seen_by_tiles / 35 + 2.0 * (of.queries + of.keys));
  return tiles > 0.9 * vectors;
}

// The gradients of the heads that share one head of keys and values, as a problem of its own.
AttentionBackward one_of(const AttentionBackward& p) {
  AttentionBackward one = p;
  one.of.heads = p.of.heads / larger(p.of.shared_heads, 1);
  one.of.batch = one.of.shared_heads = 1;
  return one;
}

void descend_by_vectors(const AttentionBackward& p, const AttentionBackwardCall& call, long batch,
                        long shared, float* scratch) {
  const Attention& of = p.of;
  const AttentionBackward one = one_of(p);
  const long head = shared * one.of.heads;
  const auto read = [&](const void* x, const HeadStrides& s, long index) {
    return floats(x) + offset(s, batch, index);
  };
  const auto result = [&](void* x, const HeadStrides& s, long index) {
    return floats(x) + offset(s, batch, index);
  };
  rest::attention_backward.run(
      one, {read(call.gradient, p.gradient, head), read(call.q, of.q, head),
            read(call.k, of.k, shared), read(call.v, of.v, shared), read(call.out, of.out, head),
            read(call.logsumexp, of.logsumexp, head),
            mask_at(of, call.mask, batch, head, 0, 0).data, result(call.dq, p.dq, head),
            result(call.dk, p.dk, shared), result(call.dv, p.dv, shared), scratch, 1});
}

// Writes the exponents of the operands of some heads. Returns whether all can be split.
bool find_exponents(const AttentionBackward& p, const AttentionBackwardCall& call, long batch,
                    long shared, SplitNumbers& numbers) {
  const Attention& of = p.of;
  const float scale = __builtin_fabsf(of.scale);
  if (scale != 0.0f && !(scale >= kLeastScale && scale <= kMostScale)) return false;
  const long seen = of.queries > 0 ? seen_by(of, of.queries - 1) : 0;
  OperandRange q, k, v, gradient;
  k.add(floats(call.k) + offset(of.k, batch, shared), of.k.token, seen, of.size);
  v.add(floats(call.v) + offset(of.v, batch, shared), of.v.token, seen, of.size);
  const long sharing = of.heads / of.shared_heads;
  for (long head = shared * sharing; head < (shared + 1) * sharing; ++head) {
    q.add(floats(call.q) + offset(of.q, batch, head), of.q.token, of.queries, of.size);
    gradient.add(floats(call.gradient) + offset(p.gradient, batch, head), p.gradient.token,
                 of.queries, of.size);
  }
  numbers.q = q.exponent();
  numbers.k = k.exponent();
  numbers.v = v.exponent();
  numbers.gradient = gradient.exponent();
  return q.is_within(kFarthestOperand, kOtherSpan) && k.is_within(kFarthestOperand, kOtherSpan) &&
         v.is_within(kFarthestOperand, kValueSpan) &&
         gradient.is_within(kFarthestGradient, kOtherSpan);
}

long split_floats(const AttentionBackward& p) {
  return larger(gradient_layout_of<SplitNumbers>(p.of).end,
                rest::attention_backward.scratch_floats(one_of(p), 1));
}

void descend_split(const AttentionBackward& p, const AttentionBackwardCall& call) {
  const GradientLayout at = gradient_layout_of<SplitNumbers>(p.of);
  each_head_of_keys(p, call, split_floats(p), [&](long batch, long shared, float* scratch) {
    bool is_beyond = false;
    SplitNumbers numbers = {0, 0, 0, 0, &is_beyond};
    if (find_exponents(p, call, batch, shared, numbers)) {
      descend_heads(p, call, at, numbers, batch, shared, scratch);
      if (!numbers.has_failed()) return;
    }
    descend_by_vectors(p, call, batch, shared, scratch);
  });
}

void run(const AttentionBackward& p, const AttentionBackwardCall& call) {
  if (is_by_vectors(p)) return rest::attention_backward.run(p, call);
  if (p.of.element == Element::kBfloat16) return descend_whole(p, call);
  descend_split(p, call);
}

long scratch_floats(const AttentionBackward& p, int threads) {
  if (p.of.element == Element::kBfloat16) return threads * whole_floats(p);
  return threads * split_floats(p);
}

}  // namespace

const AttentionBackwardPass attention_backward = {run, scratch_floats};

}  // namespace BESTOF_TARGET
}  // namespace bestof
