// The Python face of the native kernels. Arguments are checked here; only the files of this folder
// throw.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <omp.h>

#include <string>
#include <vector>

#include "bindings/arena.h"
#include "bindings/array.h"
#include "bindings/module.h"

namespace bestof {

namespace {
const Kernels* active = nullptr;
}

const Kernels& kernels() {
  return *active;
}

namespace {

std::vector<std::string> isas() {
  int count = 0;
  const char* const* names = isa_names(&count);
  std::vector<std::string> runnable;
  for (int i = 0; i < count; ++i) {
    if (isa_runs(names[i])) runnable.push_back(names[i]);
  }
  return runnable;
}

std::string isa() {
  return active->isa;
}

void use_isa(const std::string& name) {
  if (name.empty()) {
    active = best_kernels();
    return;
  }
  std::string known;
  for (const std::string& runnable : isas()) {
    if (runnable == name) {
      active = kernels_for(name.c_str());
      return;
    }
    known += (known.empty() ? "" : ", ") + runnable;
  }
  refuse("BESTOF_ISA: expected an instruction set that this build has and this processor runs (" +
         known + "); got " + name);
}

double multiply_adds(long steps, int threads) {
  nb::gil_scoped_release release;
  return active->multiply_adds(steps, threads > 0 ? threads : omp_get_max_threads());
}

}  // namespace
}  // namespace bestof

NB_MODULE(_native, m) {
  m.doc() = "Native kernels of bestof; use bestof.kernels, which explains them.";
  // Modules keep objects until the interpreter ends, such as cached problems. Users could not act
  // on a warning about them.
  nanobind::set_leak_warnings(false);
  bestof::active = bestof::best_kernels();
  m.def("isas", &bestof::isas);
  m.def("isa", &bestof::isa);
  m.def("use_isa", &bestof::use_isa);
  m.def("multiply_adds", &bestof::multiply_adds);
  m.def("level3_bytes", &bestof::level3_bytes);
  m.def("assume_level3", &bestof::assume_level3);
  m.def("check_scratch", &bestof::check_scratch);
  bestof::bind_activation(m);
  bestof::bind_attention(m);
  bestof::bind_attention_backward(m);
  bestof::bind_bernoulli(m);
  bestof::bind_channels(m);
  bestof::bind_conv(m);
  bestof::bind_excitation(m);
  bestof::bind_focal_loss(m);
  bestof::bind_frozen_norm(m);
  bestof::bind_group_norm(m);
  bestof::bind_inverted_residual(m);
  bestof::bind_layer_norm(m);
  bestof::bind_norm(m);
  bestof::bind_optim(m);
  bestof::bind_plan(m);
  bestof::bind_pool(m);
  bestof::bind_product(m);
  bestof::bind_product_plan(m);
  bestof::bind_rotary(m);
  bestof::bind_softmax(m);
  bestof::bind_steps(m);
  bestof::bind_transpose(m);
}
