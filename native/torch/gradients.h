// Whether this thread records or computes gradients. PyTorch's stable interface does not tell
// whether a backward pass runs: by the name that the C++ function has in the library.
#pragma once

namespace shim {

// Returns whether the library of this path is loaded and has the function.
bool find_gradients(const char* path);

// Returns whether no gradient is recorded, and no backward pass runs in this thread; false where
// the function was not found.
bool is_inference();

}  // namespace shim
