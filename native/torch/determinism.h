// Whether the program asks for deterministic algorithms, which PyTorch's stable interface does not
// tell: by the names that its C++ functions have in the library.
#pragma once

namespace shim {

// Whether the library of this path is loaded and has them.
bool find_determinism(const char* path);

// True where they were not found: who must know is then to take it for granted.
bool is_deterministic();

}  // namespace shim
