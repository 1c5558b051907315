// PyTorch's stable C interface, found in its library at run time. So the build needs neither its
// headers nor its library, and one build serves every release that has these functions.
//
// Declared as in torch/csrc/stable/c/shim.h, torch/csrc/inductor/aoti_torch/c/shim.h and its
// generated c_shim_cpu.h. What returns an int returns 0, or another number where it has failed.
#pragma once
#include <cstddef>
#include <cstdint>

namespace stable {

using Value =
    uint64_t;  // a number, or a handle as a number; where optional, null or the address of one
using Tensor = struct OpaqueTensor*;
using Library = struct OpaqueLibrary*;

// Of c10/core/ScalarType.h and DeviceType.h.
constexpr int32_t FLOAT16 = 5, FLOAT32 = 6, BFLOAT16 = 15, CPU = 0;

#define BESTOF_STABLE_FUNCTIONS(X)                                                    \
  X(aoti_torch_library_init_impl, int,                                                \
    (const char*, const char* key, const char*, uint32_t, Library* made))             \
  X(aoti_torch_delete_library_object, int, (Library))                                 \
  X(torch_get_num_threads, int, (uint32_t* threads))                                  \
  X(aoti_torch_grad_mode_is_enabled, bool, ())                                        \
  X(aoti_torch_new_uninitialized_tensor, int, (Tensor * undefined))                   \
  X(aoti_torch_new_tensor_handle, int, (Tensor, Tensor * made))                       \
  X(aoti_torch_delete_tensor_object, int, (Tensor))                                   \
  X(aoti_torch_is_defined, int, (Tensor, bool* is_defined))                           \
  X(aoti_torch_get_dim, int, (Tensor, int64_t* dimensions))                           \
  X(aoti_torch_get_dtype, int, (Tensor, int32_t* dtype))                              \
  X(aoti_torch_get_sizes, int, (Tensor, int64_t** borrowed))                          \
  X(aoti_torch_get_strides, int, (Tensor, int64_t** borrowed))                        \
  X(torch_get_const_data_ptr, int, (Tensor, const void** address))                    \
  X(torch_get_mutable_data_ptr, int, (Tensor, void** address))                        \
  X(aoti_torch_empty_strided, int,                                                    \
    (int64_t dimensions, const int64_t* sizes, const int64_t* strides, int32_t dtype, \
     int32_t device, int32_t index, Tensor* made))                                    \
  X(aoti_torch__reinterpret_tensor, int,                                              \
    (Tensor, int64_t dimensions, const int64_t* sizes, const int64_t* strides,        \
     int64_t offset_increment, Tensor* made))

#define BESTOF_STABLE_FUNCTION(name, result, arguments) extern result(*name) arguments;
BESTOF_STABLE_FUNCTIONS(BESTOF_STABLE_FUNCTION)
#undef BESTOF_STABLE_FUNCTION

// Returns whether the library of this path is loaded and has all of them. Nothing above may be
// called before.
bool find(const char* path);

}  // namespace stable
