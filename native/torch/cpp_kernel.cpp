#include "cpp_kernel.h"

#include <dlfcn.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace shim {

namespace {

struct Signature {  // c10::impl::CppSignature
  const void* type;
};
using Schema = std::unique_ptr<int>;  // as large as the std::unique_ptr<c10::FunctionSchema> there

// A torch::CppFunction, which has some 100 bytes.
struct CppFunction {
  alignas(16) unsigned char bytes[512];
};

// torch::CppFunction(KernelFunction, std::optional<CppSignature>, std::unique_ptr<FunctionSchema>)
void (*make_function)(CppFunction*, KernelFunction, std::optional<Signature>, Schema) = nullptr;
void (*end_function)(CppFunction*) = nullptr;
// torch::Library& torch::Library::_impl(const char*, CppFunction&&, _RegisterOrVerify) &
void* (*put_in)(stable::Library, const char*, CppFunction*, int) = nullptr;
constexpr int REGISTER = 0;

constexpr char MAKE_FUNCTION[] =
    "_ZN5torch11CppFunctionC1EN3c1014KernelFunctionESt8optionalINS1_4impl12CppSignatureEESt10"
    "unique_ptrINS1_14FunctionSchemaESt14default_deleteIS8_EE";
constexpr char END_FUNCTION[] = "_ZN5torch11CppFunctionD1Ev";
constexpr char PUT_IN[] = "_ZNR5torch7Library5_implEPKcONS_11CppFunctionENS_17_RegisterOrVerifyE";

// Returns whether this is the address of code in PyTorch's libraries.
bool is_in_pytorch(const void* code) {
  Dl_info found;
  if (code == nullptr || dladdr(code, &found) == 0 || found.dli_fname == nullptr) return false;
  const std::string name = found.dli_fname;
  return name.find("libtorch_cpu") != std::string::npos ||
         name.find("libtorch_cuda") != std::string::npos;
}

// PyTorch's undefined tensor, a singleton. PyTorch does not count its owners.
void* undefined_tensor() {
  static void* const undefined = [] {
    stable::Tensor handle = nullptr;
    stable::aoti_torch_new_uninitialized_tensor(&handle);
    void* const found = *reinterpret_cast<void**>(handle);
    stable::aoti_torch_delete_tensor_object(handle);
    return found;
  }();
  return undefined;
}

// Takes the tensor of a handle over, and deletes the handle.
void* taken(stable::Tensor handle) {
  void* tensor = std::exchange(*reinterpret_cast<void**>(handle), undefined_tensor());
  stable::aoti_torch_delete_tensor_object(handle);
  return tensor;
}

// The bytes of a c10::intrusive_ptr_target: the address of its functions, and its counts.
constexpr int COUNTS = 16;

void drop_counted(void* object) {
  stable::Tensor handle = nullptr;
  if (stable::aoti_torch_new_uninitialized_tensor(&handle) != 0) return;
  *reinterpret_cast<void**>(handle) = object;
  stable::aoti_torch_delete_tensor_object(handle);
}

}  // namespace

Result::Result(stable::Tensor handle) : tensor_(taken(handle)) {}

Result::~Result() {
  drop_counted(tensor_);
}

StackValue StackValue::of(stable::Tensor handle) {
  StackValue made;
  made.payload.tensor = taken(handle);
  made.tag = TENSOR;
  return made;
}

void StackValue::drop() {
  // The end of a tensor's handle counts down what stands before every counted object, and deletes
  // the last one by its own destructor.
  if (tag == TENSOR || tag == TEXT || tag == LIST) drop_counted(payload.counted);
  tag = NONE;
}

const std::string& StackValue::text() const {
  return *reinterpret_cast<const std::string*>(static_cast<char*>(payload.counted) + COUNTS);
}

const StackList& StackValue::list() const {
  return *reinterpret_cast<const StackList*>(static_cast<char*>(payload.counted) + COUNTS);
}

bool find_registration(const char* path) {
  void* library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  make_function = reinterpret_cast<decltype(make_function)>(dlsym(library, MAKE_FUNCTION));
  end_function = reinterpret_cast<decltype(end_function)>(dlsym(library, END_FUNCTION));
  put_in = reinterpret_cast<decltype(put_in)>(dlsym(library, PUT_IN));
  return make_function != nullptr && end_function != nullptr && put_in != nullptr;
}

bool read_kernel(void* object, KernelFunction* kernel) {
  // An object of pybind11 begins with Python's header and the address of what it holds, a
  // c10::SafeKernelFunction, which begins with the kernel.
  struct Held {
    uint64_t header[2];
    const void* const* value;
  };
  const void* const* words = static_cast<const Held*>(object)->value;
  if (words == nullptr || words[0] == nullptr || !is_in_pytorch(words[1])) return false;
  for (const int place : {2, 3}) {
    if (words[place] != nullptr && !is_in_pytorch(words[place])) return false;
  }
  if ((words[2] == nullptr) == (words[3] == nullptr)) return false;  // one of them is the kernel
  kernel->functor = const_cast<void*>(words[0]);
  kernel->boxed = const_cast<void*>(words[1]);
  kernel->unboxed = const_cast<void*>(words[2]);
  kernel->symbolic = const_cast<void*>(words[3]);
  return true;
}

bool register_kernel(stable::Library library, const char* operation, const KernelFunction& kernel) {
  CppFunction function;
  make_function(&function, KernelFunction(kernel), std::nullopt, nullptr);
  bool is_in = true;
  try {
    put_in(library, operation, &function, REGISTER);
  } catch (...) {  // c10::Error, of whose header nothing is here
    is_in = false;
  }
  end_function(&function);
  return is_in;
}

}  // namespace shim
