#include "stable_abi.h"

#include <dlfcn.h>

namespace stable {

#define BESTOF_STABLE_FUNCTION(name, result, arguments) result(*name) arguments = nullptr;
BESTOF_STABLE_FUNCTIONS(BESTOF_STABLE_FUNCTION)
#undef BESTOF_STABLE_FUNCTION

bool find(const char* path) {
  void* library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  bool all = true;
#define BESTOF_STABLE_FUNCTION(name, result, arguments)           \
  name = reinterpret_cast<decltype(name)>(dlsym(library, #name)); \
  all = all && name != nullptr;
  BESTOF_STABLE_FUNCTIONS(BESTOF_STABLE_FUNCTION)
#undef BESTOF_STABLE_FUNCTION
  return all;  // the library stays loaded, as it was
}

}  // namespace stable
