// Runs of native kernels for Python, which compares their results before calls are left to them.
#pragma once
#include <nanobind/nanobind.h>

namespace shim {

// Adds `compute` to the module.
void bind_native_check(nanobind::module_& module);

}  // namespace shim
