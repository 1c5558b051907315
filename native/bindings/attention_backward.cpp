// The gradients of attention for Python.
#include "attention/backward.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <omp.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings/arena.h"
#include "bindings/attention.h"
#include "bindings/execute.h"
#include "bindings/module.h"
#include "bindings/runnable.h"

namespace bestof {
namespace {

constexpr int kOperands = 7, kGradients = 3;
constexpr int kLogsumexp = 5, kMask = 6;
const char* const kNames[] = {"gradient",  "q",    "k",  "v",  "out",
                              "logsumexp", "mask", "dq", "dk", "dv"};

// `arrays` are named as kNames; the mask may be null.
AttentionBackward make_backward(const Array* const (&arrays)[kOperands + kGradients], bool causal,
                                double scale, Element element, Element mask_element) {
  const auto& [gradient, q, k, v, out, logsumexp, mask, dq, dk, dv] = arrays;
  AttentionBackward p = {};
  p.of = make_attention({*q, *k, *v, *out, mask, logsumexp}, causal, scale, element, mask_element);
  expect_shape(*gradient, "gradient", q->shape);
  expect_side_by_side(*gradient, "gradient");
  p.gradient = strides_of(*gradient);
  p.dq = result_strides(*dq, "dq", q->shape);
  p.dk = result_strides(*dk, "dk", k->shape);
  p.dv = result_strides(*dv, "dv", k->shape);
  return p;
}

// Needs no lock of Python.
Outcome descend(const AttentionBackward& p, AttentionBackwardCall call) {
  if (p.of.batch == 0 || p.of.heads == 0) return Outcome::kDone;
  const AttentionBackwardPass& pass = *kernels().attention_backward;
  call.scratch = scratch(pass.scratch_floats(p, call.threads));
  if (!call.scratch) return Outcome::kNoMemory;
  pass.run(p, call);
  return guard_stands() ? Outcome::kDone : Outcome::kGuardBroken;
}

AttentionBackwardCall call_of(const void* const operands[kOperands],
                              void* const gradients[kGradients], int threads) {
  return {operands[0],  operands[1],  operands[2],
          operands[3],  operands[4],  static_cast<const float*>(operands[5]),
          operands[6],  gradients[0], gradients[1],
          gradients[2], nullptr,      threads};
}

void run_backward(const AttentionBackward& p, const AttentionBackwardCall& call) {
  Outcome outcome;
  {
    nb::gil_scoped_release release;
    outcome = descend(p, call);
  }
  if (outcome == Outcome::kNoMemory) {
    const long floats = kernels().attention_backward->scratch_floats(p, call.threads);
    refuse("scratch: no memory for " + std::to_string(floats * 4) +
           " bytes of the gradients of attention");
  }
  if (outcome == Outcome::kDone) return;
  PyErr_SetString(PyExc_SystemError, "bestof: gradients of attention went past their scratch");
  throw nb::python_error();
}

// `given` are named as kNames; the mask may be None.
void attention_backward(const std::vector<nb::object>& given, bool causal, double scale,
                        const std::string& dtype, const std::string& mask_dtype, int threads) {
  const Element element = element_of(dtype), mask_element = element_of(mask_dtype);
  Array read[kOperands + kGradients];
  const Array* arrays[kOperands + kGradients];
  const void* operands[kOperands] = {};
  void* gradients[kGradients] = {};
  for (int i = 0; i < kOperands + kGradients; ++i) {
    arrays[i] = &read[i];
    if (i < kOperands && given[i].is_none()) {
      arrays[i] = nullptr;
    } else if (i < kOperands) {
      const Element one = i == kLogsumexp ? Element::kFloat32 : i == kMask ? mask_element : element;
      read[i] = read_strided(given[i], kNames[i], one);
      operands[i] = read[i].data;
    } else {
      read[i] = write_strided(given[i], kNames[i], element);
      gradients[i - kOperands] = read[i].data;
    }
  }
  const AttentionBackward p = make_backward(arrays, causal, scale, element, mask_element);
  for (int i = kOperands; i < kOperands + kGradients; ++i) {
    for (int j = 0; j < i; ++j) {
      if (arrays[j]) expect_apart(read[i], kNames[i], read[j], kNames[j]);
    }
  }
  run_backward(p, call_of(operands, gradients, threads_of(threads)));
}

// Gradients of attention whose shapes and strides were checked once.
struct AttentionBackwardPlan final : Runnable {
  AttentionBackward problem;
  bool masks;
  int threads;
  std::string isa = kernels().isa;

  AttentionBackwardPlan(const AttentionBackward& p, bool has_mask, int most)
      : problem(p), masks(has_mask), threads(most) {}

  bool run_on(const void* const* operands, void* const* results, const void*) const override {
    if (isa != kernels().isa) return false;
    const int used = threads > 0 ? threads : omp_get_max_threads();
    return descend(problem, call_of(operands, results, used)) == Outcome::kDone;
  }
};

void make_plan(AttentionBackwardPlan* self, const std::vector<Shape>& shapes,
               const std::vector<Shape>& strides, bool masks, bool causal, double scale,
               const std::string& dtype, const std::string& mask_dtype, int threads) {
  Array given[kOperands + kGradients];
  const Array* arrays[kOperands + kGradients];
  for (int i = 0; i < kOperands + kGradients; ++i) {
    given[i] = described(shapes[i], strides[i], kNames[i]);
    arrays[i] = i == kMask && !masks ? nullptr : &given[i];
  }
  new (self) AttentionBackwardPlan(
      make_backward(arrays, causal, scale, element_of(dtype), element_of(mask_dtype)), masks,
      threads);
}

void run_plan(const AttentionBackwardPlan& plan, const std::vector<std::size_t>& addresses) {
  if (addresses.size() != kOperands + kGradients || plan.masks != (addresses[kMask] != 0))
    refuse("addresses: expected ten, that of a mask 0 unless the plan has one");
  const void* operands[kOperands];
  void* gradients[kGradients];
  for (int i = 0; i < kOperands; ++i) operands[i] = reinterpret_cast<const void*>(addresses[i]);
  for (int i = 0; i < kGradients; ++i)
    gradients[i] = reinterpret_cast<void*>(addresses[kOperands + i]);
  run_backward(plan.problem, call_of(operands, gradients, threads_of(plan.threads)));
}

}  // namespace

void bind_attention_backward(nb::module_& m) {
  nb::class_<AttentionBackwardPlan>(m, "AttentionBackwardPlan")
      .def("__init__", &make_plan)
      .def("run", &run_plan)
      .def_prop_ro("address", [](const AttentionBackwardPlan& plan) { return plan.address(); });
  m.def("attention_backward", &attention_backward);
}

}  // namespace bestof
