#include "native_product.h"

#include <dlfcn.h>

namespace shim {

namespace {

// Of torch/csrc/inductor/aoti_torch/c/shim_cpu.h. PyTorch may be built without it.
int (*linear_pointwise)(stable::Tensor input, stable::Tensor weight, stable::Tensor* bias,
                        const char* activation, const double** scalars, int64_t scalar_count,
                        const char** algorithm, stable::Tensor* output) = nullptr;

// A tensor that ends with this.
class Owned {
 public:
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (tensor != nullptr) stable::aoti_torch_delete_tensor_object(tensor);
  }
  stable::Tensor release() {
    const stable::Tensor released = tensor;
    tensor = nullptr;
    return released;
  }

  stable::Tensor tensor = nullptr;
};

// Makes the transposed view of a matrix, at the address of the matrix itself.
bool transpose(stable::Tensor tensor, const Matrices& matrix, Owned* view) {
  const int64_t sizes[2] = {matrix.columns, matrix.rows};
  const int64_t strides[2] = {matrix.column_stride, matrix.row_stride};
  return stable::aoti_torch__reinterpret_tensor(tensor, 2, sizes, strides, 0, &view->tensor) == 0;
}

// Makes C and returns its address; null if memory is short.
float* make_output(const ProductCall& call, Owned* output) {
  const int64_t rows = call.left.rows, columns = call.right.columns;
  const int64_t sizes[3] = {call.left.batch, rows, columns},
                strides[3] = {rows * columns, columns, 1};
  const int first = PRODUCT_OPERATIONS[call.operation].is_batched ? 0 : 1;
  void* address = nullptr;
  if (stable::aoti_torch_empty_strided(3 - first, sizes + first, strides + first, stable::FLOAT32,
                                       stable::CPU, 0, &output->tensor) != 0) {
    output->tensor = nullptr;
    return nullptr;
  }
  return stable::torch_get_mutable_data_ptr(output->tensor, &address) == 0
             ? static_cast<float*>(address)
             : nullptr;
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
  Owned weight;
  if (!transpose(call.b, call.right, &weight)) return false;
  stable::Tensor bias = call.bias;
  return linear_pointwise(call.a, weight.tensor, bias == nullptr ? nullptr : &bias, "none", nullptr,
                          0, nullptr, output) == 0;
}

bool PlannedProduct::run(LentWeights& lent, const ProductCall& call, stable::Tensor* output) const {
  Borrowed borrowed;
  Owned result;
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
