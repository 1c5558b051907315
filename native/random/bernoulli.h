// Bernoulli numbers from the Mersenne twister MT19937, the same ones as PyTorch draws from it.
#pragma once
#include <cstdint>

#include "simd/each_isa.h"

namespace bestof {

// Words of the twister's state, which are drawn one after the other and then replaced together.
constexpr long kTwisterWords = 624;

// Each number takes two words, the upper half first, and is 1 if their lower 53 bits are less than
// `below`. A result has `bytes` bytes, 2, 4 or 8: those of `one`, or zeros.
struct BernoulliProblem {
  long count;
  int64_t below;
  uint64_t one;
  int bytes;
};

// Writes the numbers to `out`. `unread` is how many words at the end of the state were not drawn
// yet; it returns how many these are afterwards. Words are replaced when the next one is drawn.
using Bernoulli = long(const BernoulliProblem& p, uint32_t* state, long unread, void* out);

BESTOF_EACH_ISA(Bernoulli bernoulli;)

}  // namespace bestof
