// Reads the version of a tensor: how often its memory was written to. The stable interface lacks
// it, so the C++ function is found by its name in the library.
#pragma once

#include <cstdint>

#include "stable_abi.h"

namespace shim {

// Returns whether the library of this path is loaded and has it.
bool find_tensor_version(const char* path);

// Returns -1 if the function was not found, or for a tensor without a version, such as one that was
// made in inference mode.
int64_t version_of(stable::Tensor tensor);

}  // namespace shim
