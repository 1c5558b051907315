#include "onednn_product.h"

#include <dlfcn.h>

#include "owned_tensor.h"

namespace shim {

namespace {

// Of torch/csrc/inductor/aoti_torch/c/shim_cpu.h. PyTorch may be built without it.
int (*linear_pointwise)(stable::Tensor input, stable::Tensor weight, stable::Tensor* bias,
                        const char* activation, const double** scalars, int64_t scalar_count,
                        const char** algorithm, stable::Tensor* output) = nullptr;

// Makes the transposed view of a matrix, at the address of the matrix itself.
bool transpose(stable::Tensor matrix, OwnedTensor* view) {
  int64_t *sizes = nullptr, *strides = nullptr;
  if (stable::aoti_torch_get_sizes(matrix, &sizes) != 0 ||
      stable::aoti_torch_get_strides(matrix, &strides) != 0)
    return false;
  const int64_t turned_sizes[2] = {sizes[1], sizes[0]};
  const int64_t turned_strides[2] = {strides[1], strides[0]};
  return stable::aoti_torch__reinterpret_tensor(matrix, 2, turned_sizes, turned_strides, 0,
                                                &view->tensor) == 0;
}

}  // namespace

bool find_onednn(const char* path) {
  void* library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  linear_pointwise = reinterpret_cast<decltype(linear_pointwise)>(
      dlsym(library, "aoti_torch_cpu__linear_pointwise"));
  return linear_pointwise != nullptr;
}

bool OneDnnProduct::run(LentWeights&, const stable::Tensor* operands,
                        stable::Tensor* results) const {
  OwnedTensor weight;
  stable::Tensor bias = operands[0];
  return transpose(operands[2], &weight) &&
         linear_pointwise(operands[1], weight.tensor, bias == nullptr ? nullptr : &bias, "none",
                          nullptr, 0, nullptr, results) == 0;
}

}  // namespace shim
