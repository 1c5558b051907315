// The kernels by which PyTorch's dispatcher enters a shim.
//
// Products and the forward pass of attention are called often and small, so they have kernels with
// the types of their arguments. All other operators come boxed: the dispatcher puts the arguments
// on a stack.
#pragma once
#include <string>

#include "cpp_kernel.h"

namespace shim {

class OperatorShim;

// An operator of PyTorch.
struct Operator {
  std::string name;   // without `aten::`
  std::string kinds;  // a letter for each argument: t for a tensor, which may be optional, or a dot
  int results;        // tensors
};

// Puts a shim behind the entry of its operator at this place, on the devices of a dispatch key, and
// tells it in `kernel`. A thread may still call the shim after it was closed. Returns false if
// another shim is behind the entry, or if there are too many operators.
bool open_entry(OperatorShim& shim, int place, const char* key, KernelFunction* kernel);
// Does nothing if the shim is not behind the entry.
void close_entry(const OperatorShim& shim, int place);

// Returns whether the entry of this operator calls PyTorch's kernel unboxed.
bool is_typed(const std::string& name);

}  // namespace shim
