// Rotary position embedding: one pass over memory. PyTorch's operators for it take five.
#include "rotary/rotary.h"

#include "simd/bfloat16.h"
#include "simd/kernels.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// Below it, starting threads takes longer than they save.
constexpr long kFewest = 1L << 15;

// `kLanes` elements of both halves of a token, or the first n.
template <bool kWhole, class Element>
BESTOF_INLINE void turn(const Element* x, const Element* cos, const Element* sin, Element* y,
                        long half, long n) {
  const auto at = [n](const Element* p) { return kWhole ? load(p) : load_first(p, n); };
  const Vec first = at(x), second = at(x + half);
  const Vec left = first * at(cos) - second * at(sin);
  const Vec right = second * at(cos + half) + first * at(sin + half);
  if (kWhole) {
    store(y, left);
    store(y + half, right);
  } else {
    store_first(y, left, n);
    store_first(y + half, right, n);
  }
}

template <class Element>
void rotate_tokens(const RotaryProblem& p, const RotaryCall& call) {
  const auto* x = static_cast<const Element*>(call.x);
  const auto* cos = static_cast<const Element*>(call.cos);
  const auto* sin = static_cast<const Element*>(call.sin);
  auto* y = static_cast<Element*>(call.y);
  const long rows = p.batch * p.heads * p.tokens, half = p.size / 2;
#pragma omp parallel for schedule(static) \
    num_threads(call.threads) if (rows > 1 && rows * p.size >= kFewest)
  for (long row = 0; row < rows; ++row) {
    const long token = row % p.tokens, head = row / p.tokens % p.heads;
    const long batch = row / p.tokens / p.heads;
    const auto offset = [=](const HeadStrides& by) {
      return batch * by.batch + head * by.head + token * by.token;
    };
    const Element *from = x + offset(p.x), *c = cos + offset(p.cos), *s = sin + offset(p.sin);
    Element* to = y + row * p.size;
    long i = 0;
    for (; i + kLanes <= half; i += kLanes)
      turn<true>(from + i, c + i, s + i, to + i, half, kLanes);
    if (i < half) turn<false>(from + i, c + i, s + i, to + i, half, half - i);
  }
}

}  // namespace

void rotate(const RotaryProblem& p, const RotaryCall& call) {
  if (p.element == Element::kBfloat16) return rotate_tokens<Bfloat16>(p, call);
  rotate_tokens<float>(p, call);
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
