// How often a tensor's memory was written to, as PyTorch counts it. Its stable interface does not
// tell: by the name that the C++ function has in the library.
#pragma once

#include <cstdint>

#include "stable_abi.h"

namespace shim {

// Whether the library of this path is loaded and has it.
bool find_tensor_version(const char* path);

// -1 where it was not found, and of tensors that have none, as those that were made in inference
// mode.
int64_t version_of(stable::Tensor tensor);

}  // namespace shim
