#include "gradients.h"

#include <dlfcn.h>

#include "stable_abi.h"

namespace shim {

namespace {

int (*graph_task)() = nullptr;  // torch::autograd::get_current_graph_task_id()

}  // namespace

bool find_gradients(const char* path) {
  void* library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  graph_task = reinterpret_cast<decltype(graph_task)>(
      dlsym(library, "_ZN5torch8autograd25get_current_graph_task_idEv"));
  return graph_task != nullptr;
}

bool is_inference() {
  constexpr int NONE = -1;
  return !stable::aoti_torch_grad_mode_is_enabled() && graph_task != nullptr &&
         graph_task() == NONE;
}

}  // namespace shim
