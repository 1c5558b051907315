// oneDNN's product of matrices on PyTorch's tensors, without Python.
#pragma once
#include "native.h"

namespace shim {

// Returns whether the library of this path is loaded and has oneDNN's product.
bool find_onednn(const char* path);

// Of operands (bias or null, a, b). May only be run if `find_onednn` has found it.
class OneDnnProduct final : public Native {
 public:
  bool run(LentWeights&, const stable::Tensor* operands, stable::Tensor* results) const override;
};

}  // namespace shim
