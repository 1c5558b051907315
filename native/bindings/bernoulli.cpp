// Bernoulli numbers for Python.
#include "random/bernoulli.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <cmath>
#include <cstring>
#include <string>

#include "bindings/module.h"
#include "bindings/runnable.h"

namespace bestof {
namespace {

// The state of a torch.Generator of the CPU, as `get_state` returns it, but for what normal numbers
// leave behind.
struct GeneratorState {
  uint64_t seed;
  int32_t left;  // words until the state is replaced, and 1
  int32_t seeded;
  uint64_t next;
  uint64_t words[kTwisterWords];
};

BernoulliProblem problem_of(long count, double probability, const std::string& dtype) {
  // PyTorch compares the lower 53 bits times 2^-53 with the probability. Both products are exact.
  const auto below = static_cast<int64_t>(std::ceil(std::ldexp(probability, 53)));
  if (dtype == "bfloat16") return {count, below, 0x3F80, 2};
  if (dtype == "float16") return {count, below, 0x3C00, 2};
  if (dtype == "float32") return {count, below, 0x3F800000, 4};
  return {count, below, 0x3FF0000000000000, 8};
}

void draw(const BernoulliProblem& p, const void* before, void* out, void* after) {
  GeneratorState state;
  std::memcpy(&state, before, sizeof(state));
  uint32_t words[kTwisterWords];
  for (long i = 0; i < kTwisterWords; ++i) words[i] = static_cast<uint32_t>(state.words[i]);
  const long unread = kernels().bernoulli(p, words, state.left - 1, out);
  for (long i = 0; i < kTwisterWords; ++i) state.words[i] = words[i];
  state.left = static_cast<int32_t>(unread + 1);
  if (p.count > 0) state.next = static_cast<uint64_t>(kTwisterWords - unread);
  std::memcpy(after, &state, sizeof(state));
}

}  // namespace

void bind_bernoulli(nanobind::module_& m) {
  // The generator's state -> numbers, and the state afterwards, which may be the same memory.
  m.def("bernoulli", [](long count, double probability, const std::string& dtype) {
    return runnable([p = problem_of(count, probability, dtype)](auto operands, auto results) {
      draw(p, operands[0], results[0], results[1]);
      return true;
    });
  });
}

}  // namespace bestof
