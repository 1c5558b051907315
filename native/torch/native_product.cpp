#include "native_product.h"

#include <dlfcn.h>

#include "owned_tensor.h"

namespace shim {

namespace {

// Of torch/csrc/inductor/aoti_torch/c/shim_cpu.h. PyTorch may be built without it.
int (*linear_pointwise)(stable::Tensor input, stable::Tensor weight, stable::Tensor* bias,
                        const char* activation, const double** scalars, int64_t scalar_count,
                        const char** algorithm, stable::Tensor* output) = nullptr;

// Makes the transposed view of a matrix, at the address of the matrix itself.
bool transpose(stable::Tensor tensor, const Matrices& matrix, OwnedTensor* view) {
  const int64_t sizes[2] = {matrix.columns, matrix.rows};
  const int64_t strides[2] = {matrix.column_stride, matrix.row_stride};
  return stable::aoti_torch__reinterpret_tensor(tensor, 2, sizes, strides, 0, &view->tensor) == 0;
}

// Makes C and returns its address; null if memory is short.
float* make_output(const ProductCall& call, OwnedTensor* output) {
  const int64_t rows = call.left.rows, columns = call.right.columns;
  const int64_t sizes[3] = {call.left.batch, rows, columns},
                strides[3] = {rows * columns, columns, 1};
  const int first = PRODUCT_OPERATIONS[call.operation].is_batched ? 0 : 1;
  return output->make(3 - first, sizes + first, strides + first);
}

}  // namespace

bool find_onednn(const char* path) {
  void* library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  linear_pointwise = reinterpret_cast<decltype(linear_pointwise)>(
      dlsym(library, "aoti_torch_cpu__linear_pointwise"));
  return linear_pointwise != nullptr;
}

bool OneDnnProduct::run(LentWeights&, const ProductCall& call, stable::Tensor* output) const {
  OwnedTensor weight;
  if (!transpose(call.b, call.right, &weight)) return false;
  stable::Tensor bias = call.bias;
  return linear_pointwise(call.a, weight.tensor, bias == nullptr ? nullptr : &bias, "none", nullptr,
                          0, nullptr, output) == 0;
}

bool PlannedProduct::run(LentWeights& lent, const ProductCall& call, stable::Tensor* output) const {
  Borrowed borrowed;
  OwnedTensor result;
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  if (stable::torch_get_const_data_ptr(call.b, &b) != 0) return false;
  // Check B first: if Python must pack it, no memory was asked for in vain.
  if (key_ != 0 &&
      !borrowed.take(lent, *kernels_, call.b, b, key_, call.right.rows * call.right.columns))
    return false;
  float* c = make_output(call, &result);
  if (c == nullptr || stable::torch_get_const_data_ptr(call.a, &a) != 0 ||
      (call.bias != nullptr && stable::torch_get_const_data_ptr(call.bias, &bias) != 0) ||
      !kernels_->multiply(plan_, a, b, borrowed.packed(), static_cast<const float*>(bias), nullptr,
                          c))
    return false;
  *output = result.release();
  return true;
}

}  // namespace shim
