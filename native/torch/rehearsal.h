// Runs of native kernels for Python, which compares their results before calls are left to them.
#pragma once
#include <nanobind/nanobind.h>

namespace shim {

// Adds `compute_attention`, `compute_convolution` and `compute_product` to the module.
void bind_rehearsal(nanobind::module_& module);

}  // namespace shim
