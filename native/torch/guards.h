// The states of the program in which PyTorch's own kernels answer every call. The stable interface
// lacks them, so the C++ functions are found by their names in the library.
//
// `bestof/torch/ops/guards.py` has the same rows for kernels in Python, and says which other states
// PyTorch's dispatcher handles before a kernel is called. A test compares both.
#pragma once

namespace shim {

// Returns whether the library of this path is loaded and has the functions of all guards.
bool find_guards(const char* path);

// Whether the program wants deterministic algorithms.
bool is_deterministic();
// Whether torch.jit.trace records this thread. PyTorch's convolution is recorded by the operators
// that it calls in turn. A native kernel calls none, so the trace would hold its result as a
// constant.
bool is_traced();
// Whether this thread runs a module that the configuration leaves to PyTorch (`skip_modules`).
bool is_skipped();
// Counts the running modules of this thread that are left to PyTorch.
void enter_skipped();
void leave_skipped();
// Counts from zero again, after an interrupt that no module noticed.
void forget_skipped();

struct Guard {
  const char* name;
  bool (*is_up)();  // true if the function was not found, which is the safe answer
};
constexpr Guard GUARDS[] = {
    {"deterministic", is_deterministic}, {"traced", is_traced}, {"skipped", is_skipped}};

// Returns whether PyTorch's own kernel answers.
inline bool passes_through() {
  for (const Guard& one : GUARDS) {
    if (one.is_up()) return true;
  }
  return false;
}

}  // namespace shim
