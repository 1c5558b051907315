#include "determinism.h"

#include <dlfcn.h>

namespace shim {

namespace {

using Context = const void*;
Context (*context)() = nullptr;   // at::Context& at::globalContext()
bool (*asks)(Context) = nullptr;  // bool at::Context::deterministicAlgorithms() const

}  // namespace

bool find_determinism(const char* path) {
  void* library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  context = reinterpret_cast<decltype(context)>(dlsym(library, "_ZN2at13globalContextEv"));
  asks = reinterpret_cast<decltype(asks)>(
      dlsym(library, "_ZNK2at7Context23deterministicAlgorithmsEv"));
  return context != nullptr && asks != nullptr;
}

bool is_deterministic() {
  return context == nullptr || asks == nullptr || asks(context());
}

}  // namespace shim
