#include "guards.h"

#include <dlfcn.h>

namespace shim {

namespace {

using Context = const void*;
Context context = nullptr;        // of at::Context& at::globalContext(), one for the process
bool (*asks)(Context) = nullptr;  // bool at::Context::deterministicAlgorithms() const
// const std::shared_ptr<TracingState>& torch::jit::tracer::getTracingState(); the pointer to the
// state comes first.
const void* const* (*tracing)() = nullptr;
thread_local int skipped = 0;

}  // namespace

bool find_guards(const char* path) {
  void* library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  const auto find_context =
      reinterpret_cast<Context (*)()>(dlsym(library, "_ZN2at13globalContextEv"));
  if (find_context != nullptr) context = find_context();
  asks = reinterpret_cast<decltype(asks)>(
      dlsym(library, "_ZNK2at7Context23deterministicAlgorithmsEv"));
  tracing = reinterpret_cast<decltype(tracing)>(
      dlsym(library, "_ZN5torch3jit6tracer15getTracingStateEv"));
  return context != nullptr && asks != nullptr && tracing != nullptr;
}

bool is_deterministic() {
  return context == nullptr || asks == nullptr || asks(context);
}

bool is_traced() {
  return tracing == nullptr || *tracing() != nullptr;
}

bool is_skipped() {
  return skipped > 0;
}

void enter_skipped() {
  ++skipped;
}

void leave_skipped() {
  if (skipped > 0) --skipped;
}

void forget_skipped() {
  skipped = 0;
}

}  // namespace shim
