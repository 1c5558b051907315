#include "rules.h"

#include <cmath>
#include <cstring>

namespace shim {

namespace {

// Sizes and strides of a tensor of so many dimensions.
struct Layout {
  const int64_t *sizes = nullptr, *strides = nullptr;

  bool read_sizes(stable::Tensor tensor, int64_t dimensions) {
    int64_t found = 0, *borrowed = nullptr;
    if (stable::aoti_torch_get_dim(tensor, &found) != 0 || found != dimensions ||
        stable::aoti_torch_get_sizes(tensor, &borrowed) != 0)
      return false;
    sizes = borrowed;
    return true;
  }
  bool read_strides(stable::Tensor tensor) {
    int64_t* borrowed = nullptr;
    if (stable::aoti_torch_get_strides(tensor, &borrowed) != 0) return false;
    strides = borrowed;
    return true;
  }
};

int32_t dtype_of(stable::Tensor tensor) {
  int32_t dtype = -1;
  return stable::aoti_torch_get_dtype(tensor, &dtype) == 0 ? dtype : -1;
}

// Returns whether operands of a dtype can be multiplied with sums in float32.
bool is_multiplied(int32_t dtype) {
  return dtype == stable::FLOAT32 || dtype == stable::BFLOAT16 || dtype == stable::FLOAT16;
}

// In floating point, because sizes of expanded tensors may have any product.
double elements_of(const int64_t* sizes, int64_t dimensions) {
  double found = 1.0;
  for (int64_t axis = 0; axis < dimensions; ++axis) found *= static_cast<double>(sizes[axis]);
  return found;
}

bool has_elements(const OperatorCall& call, double least) {
  for (int place = 0; place < call.operands(); ++place) {
    const stable::Tensor one = call.tensors()[place];
    int64_t dimensions = 0, *sizes = nullptr;
    if (one != nullptr && stable::aoti_torch_get_dim(one, &dimensions) == 0 &&
        stable::aoti_torch_get_sizes(one, &sizes) == 0 && elements_of(sizes, dimensions) >= least)
      return true;
  }
  return false;
}

// Returns whether each matrix has dense rows or dense columns that do not overlap, and a batch is
// not expanded.
bool is_plain(const Layout& matrices, bool is_batched) {
  const int first = is_batched ? 1 : 0;
  const int64_t rows = matrices.sizes[first], columns = matrices.sizes[first + 1];
  const int64_t row = matrices.strides[first], column = matrices.strides[first + 1];
  const bool has_rows = (column == 1 || columns == 1) && (row >= columns || rows == 1);
  const bool has_columns = (row == 1 || rows == 1) && (column >= rows || columns == 1);
  return (has_rows || has_columns) &&
         (!is_batched || matrices.sizes[0] == 1 || matrices.strides[0] > 0);
}

bool is_bias(stable::Tensor bias, int64_t columns, int32_t dtype) {
  Layout layout;
  return dtype_of(bias) == dtype && layout.read_sizes(bias, 1) && layout.read_strides(bias) &&
         layout.sizes[0] == columns && (layout.strides[0] == 1 || columns == 1);
}

// PyTorch emulates a type that the processor has no instructions for. On a Sapphire Rapids with
// oneDNN held to AVX2, 64 x 128 by 128 x 128 takes 0.2 to 0.9 ms so, and 0.03 ms in float32.
constexpr double EMULATED = 0.25;

template <bool BFLOAT16, bool FLOAT16>  // whether they are emulated
bool is_product(const OperatorCall& call, double least) {
  const stable::Tensor bias = call.tensors()[0], a = call.tensors()[1], b = call.tensors()[2];
  const bool is_batched = call.argument(0).whole >= 2;  // bmm and baddbmm
  const int64_t dimensions = is_batched ? 3 : 2;
  Layout left, right;
  if (!left.read_sizes(a, dimensions) || !right.read_sizes(b, dimensions)) return false;
  const int64_t *rows = left.sizes + is_batched, *depth = right.sizes + is_batched;
  if (rows[1] != depth[0] || (is_batched && left.sizes[0] != right.sizes[0])) return false;
  const double work =
      elements_of(left.sizes, dimensions) * static_cast<double>(depth[1]);  // depth[1]: columns
  // First, because small products are many.
  if (work < (BFLOAT16 || FLOAT16 ? EMULATED : 1.0) * least) return false;
  const int32_t dtype = dtype_of(a);
  const bool is_emulated =
      (BFLOAT16 && dtype == stable::BFLOAT16) || (FLOAT16 && dtype == stable::FLOAT16);
  if (work < least && !is_emulated) return false;
  return is_multiplied(dtype) && dtype_of(b) == dtype && left.read_strides(a) &&
         right.read_strides(b) && is_plain(left, is_batched) && is_plain(right, is_batched) &&
         (bias == nullptr || is_bias(bias, depth[1], dtype));
}

// `first` is the place of q.
bool is_attention(const OperatorCall& call, double least, int first) {
  constexpr int64_t DIMENSIONS = 4;
  const stable::Tensor q = call.tensors()[first], k = call.tensors()[first + 1];
  Layout queries, keys;
  if (!queries.read_sizes(q, DIMENSIONS) || !keys.read_sizes(k, DIMENSIONS)) return false;
  const double work = elements_of(queries.sizes, DIMENSIONS) * static_cast<double>(keys.sizes[2]);
  const int32_t dtype = dtype_of(q);
  if (work < least || !is_multiplied(dtype)) return false;
  // The arguments end with dropout, causal, mask and scale.
  const Argument& dropout = call.argument(call.argument_count() - 4);
  const Argument& scale = call.argument(call.argument_count() - 1);
  return dropout.kind == Argument::REAL && dropout.real == 0.0 &&
         (scale.kind == Argument::ABSENT ||
          (scale.kind == Argument::REAL && std::isfinite(scale.real)));
}

bool is_forward(const OperatorCall& call, double least) {
  return is_attention(call, least, 0);
}

bool is_backward(const OperatorCall& call, double least) {
  return is_attention(call, least, 1);
}

bool is_convolution(const OperatorCall& call, double least) {
  constexpr int64_t OF_IMAGES = 4;
  constexpr int TRANSPOSED = 7;  // the place of the argument; a gradient stands before it
  const auto gradients = static_cast<int>(call.argument(0).whole);
  const stable::Tensor input = call.tensors()[gradients], weight = call.tensors()[gradients + 1];
  int64_t dimensions = 0, kernel_dimensions = 0, *sizes = nullptr, *kernel = nullptr;
  if (stable::aoti_torch_get_dim(input, &dimensions) != 0 || dimensions < 3) return false;
  if (dimensions == OF_IMAGES && !call.argument(TRANSPOSED + gradients).truth) return true;
  return stable::aoti_torch_get_sizes(input, &sizes) == 0 &&
         stable::aoti_torch_get_dim(weight, &kernel_dimensions) == 0 &&
         stable::aoti_torch_get_sizes(weight, &kernel) == 0 &&
         elements_of(sizes, dimensions) * elements_of(kernel, kernel_dimensions) >=
             least * static_cast<double>(sizes[1]);
}

constexpr Rule RULES[] = {
    {"elements", has_elements, 0, false, false, false, 4096},
    {"product", is_product<false, false>, 2, true, false, false, 16384},
    {"product, float16 emulated", is_product<false, true>, 2, true, false, false, 16384},
    {"product, short types emulated", is_product<true, true>, 2, true, false, false, 16384},
    {"attention", is_forward, 0, false, false, false, 4096},
    {"attention backward", is_backward, 0, false, false, false, 4096},
    {"convolution", is_convolution, 0, false, true, true, 4096}};

}  // namespace

const Rule* find_rule(const char* name) {
  for (const Rule& one : RULES) {
    if (std::strcmp(one.name, name) == 0) return &one;
  }
  return nullptr;
}

}  // namespace shim
