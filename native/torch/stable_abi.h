// PyTorch's stable C interface, found in its library at run time. So the build needs neither its
// headers nor its library, and one build serves every release that has these functions.
//
// Declared as in torch/csrc/stable/c/shim.h, torch/csrc/inductor/aoti_torch/c/shim.h and its
// generated c_shim_cpu.h. What returns an int returns 0, or another number where it has failed;
// torch_exception_get_what_without_backtrace tells why.
#pragma once
#include <cstddef>
#include <cstdint>

namespace stable {

using Value =
    uint64_t;  // a number, or a handle as a number; where optional, null or the address of one
using Tensor = struct OpaqueTensor*;
using List = struct OpaqueList*;
using Library = struct OpaqueLibrary*;
// Arguments and results use the same places. The function that is called owns the handles that it
// is given.
using Kernel = void (*)(Value* stack, uint64_t arguments, uint64_t results);

// Of c10/core/ScalarType.h and DeviceType.h.
constexpr int32_t FLOAT16 = 5, FLOAT32 = 6, BFLOAT16 = 15, CPU = 0;

// The release whose conventions for values the kernels here follow: 2.13.
constexpr uint64_t VERSION = (2ULL << 56) | (13ULL << 48);

#define BESTOF_STABLE_FUNCTIONS(X)                                                             \
  X(aoti_torch_library_init_impl, int,                                                         \
    (const char*, const char* key, const char*, uint32_t, Library* made))                      \
  X(aoti_torch_delete_library_object, int, (Library))                                          \
  X(torch_library_impl, int, (Library, const char* operation, Kernel, uint64_t version))       \
  X(torch_list_size, int, (List, size_t* size))                                                \
  X(torch_list_get_item, int, (List, size_t place, Value* item))                               \
  X(torch_delete_list, int, (List))                                                            \
  X(torch_delete_stable_ivalue, int, (Value*))                                                 \
  X(torch_exception_get_what_without_backtrace, const char*, ())                               \
  X(torch_get_num_threads, int, (uint32_t* threads))                                           \
  X(aoti_torch_grad_mode_is_enabled, bool, ())                                                 \
  X(aoti_torch_new_uninitialized_tensor, int, (Tensor * undefined))                            \
  X(aoti_torch_new_tensor_handle, int, (Tensor, Tensor * made))                                \
  X(aoti_torch_delete_tensor_object, int, (Tensor))                                            \
  X(aoti_torch_is_defined, int, (Tensor, bool* is_defined))                                    \
  X(aoti_torch_get_dim, int, (Tensor, int64_t* dimensions))                                    \
  X(aoti_torch_get_dtype, int, (Tensor, int32_t* dtype))                                       \
  X(aoti_torch_get_sizes, int, (Tensor, int64_t** borrowed))                                   \
  X(aoti_torch_get_strides, int, (Tensor, int64_t** borrowed))                                 \
  X(torch_get_const_data_ptr, int, (Tensor, const void** address))                             \
  X(torch_get_mutable_data_ptr, int, (Tensor, void** address))                                 \
  X(aoti_torch_empty_strided, int,                                                             \
    (int64_t dimensions, const int64_t* sizes, const int64_t* strides, int32_t dtype,          \
     int32_t device, int32_t index, Tensor* made))                                             \
  X(aoti_torch__reinterpret_tensor, int,                                                       \
    (Tensor, int64_t dimensions, const int64_t* sizes, const int64_t* strides,                 \
     int64_t offset_increment, Tensor* made))                                                  \
  X(aoti_torch_cpu_convolution, int,                                                           \
    (Tensor input, Tensor weight, Tensor * bias, const int64_t* stride, int64_t,               \
     const int64_t* padding, int64_t, const int64_t* dilation, int64_t, int32_t transposed,    \
     const int64_t* output_padding, int64_t, int64_t groups, Tensor* output))                  \
  X(aoti_torch_cpu_convolution_backward, int,                                                  \
    (Tensor grad_output, Tensor input, Tensor weight, const int64_t** bias_sizes, int64_t,     \
     const int64_t* stride, int64_t, const int64_t* padding, int64_t, const int64_t* dilation, \
     int64_t, int32_t transposed, const int64_t* output_padding, int64_t, int64_t groups,      \
     const int32_t* output_mask, int64_t, Tensor* grad_input, Tensor* grad_weight,             \
     Tensor* grad_bias))

#define BESTOF_STABLE_FUNCTION(name, result, arguments) extern result(*name) arguments;
BESTOF_STABLE_FUNCTIONS(BESTOF_STABLE_FUNCTION)
#undef BESTOF_STABLE_FUNCTION

// Returns whether the library of this path is loaded and has all of them. Nothing above may be
// called before.
bool find(const char* path);

}  // namespace stable
