// Asks PyTorch whether the program wants deterministic algorithms. The stable interface lacks this,
// so the C++ functions are found by their names in the library.
#pragma once

namespace shim {

// Returns whether the library of this path is loaded and has them.
bool find_determinism(const char* path);

// Returns true if they were not found, which is the safe answer.
bool is_deterministic();

}  // namespace shim
