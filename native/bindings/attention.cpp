// Attention for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "attention/forward.h"
#include "bindings/arena.h"
#include "bindings/attention.h"
#include "bindings/execute.h"
#include "bindings/module.h"
#include "bindings/problem.h"
#include "bindings/runnable.h"

namespace bestof {
namespace {

void expect_heads(const Array& array, const char* name) {
  if (array.shape.size() != 4) {
    refuse(std::string(name) + ": expected shape (batch, heads, tokens, size); got " +
           describe(array.shape));
  }
}

// Refuses a result of which two elements may share memory.
void expect_distinct(const Array& array, const char* name) {
  std::vector<std::pair<long, long>> axes;  // stride and extent
  for (std::size_t i = 0; i < array.shape.size(); ++i) {
    if (array.shape[i] > 1) axes.push_back({array.strides[i], array.shape[i]});
  }
  std::sort(axes.begin(), axes.end());
  long span = 1;
  for (const auto& [stride, extent] : axes) {
    if (stride < span && array.count() > 0) {
      refuse(std::string(name) + ": expected elements that do not overlap; got strides " +
             describe(array.strides) + " for shape " + describe(array.shape));
    }
    span += (extent - 1) * stride;
  }
}

void check_shapes(const Array& q, const Array& k, const Array& v) {
  expect_shape(v, "v", k.shape);
  const long heads = k.shape[1];
  const bool shares = heads == q.shape[1] || (heads > 0 && q.shape[1] % heads == 0);
  if (k.shape[0] == q.shape[0] && k.shape[3] == q.shape[3] && shares) return;
  refuse("k: expected the batch and the size of q, and as many heads or a divisor; got k " +
         describe(k.shape) + " and q " + describe(q.shape));
}

}  // namespace

MaskStrides broadcast(const Array& array, const char* name, const std::vector<long>& shape) {
  long strides[4] = {};
  const std::size_t rank = array.shape.size();
  bool fits = rank <= 4;
  for (std::size_t i = 0; fits && i < rank; ++i) {
    const std::size_t axis = 4 - rank + i;
    if (array.shape[i] == shape[axis]) {
      strides[axis] = array.strides[i];
    } else {
      fits = array.shape[i] == 1;
    }
  }
  if (!fits) {
    refuse(std::string(name) + ": expected a shape that broadcasts to " + describe(shape) +
           "; got " + describe(array.shape));
  }
  return {strides[0], strides[1], strides[2], strides[3]};
}

HeadStrides strides_of(const Array& array) {
  return {array.strides[0], array.strides[1], array.strides[2]};
}

void expect_side_by_side(const Array& array, const char* name) {
  if (array.count() > 0 && array.shape.back() > 1 && array.strides.back() != 1) {
    refuse(std::string(name) + ": expected the numbers of a token side by side; got strides " +
           describe(array.strides) + ": copy it");
  }
}

HeadStrides result_strides(const Array& array, const char* name, const std::vector<long>& shape) {
  expect_shape(array, name, shape);
  expect_side_by_side(array, name);
  expect_distinct(array, name);
  return strides_of(array);
}

Attention make_attention(const AttentionOperands& given, bool causal, double scale, Element element,
                         Element mask_element) {
  const Array &q = given.q, &k = given.k, &v = given.v, &out = given.out;
  for (const auto& [array, name] : {std::pair(&q, "q"), std::pair(&k, "k"), std::pair(&v, "v")}) {
    expect_heads(*array, name);
    expect_side_by_side(*array, name);
  }
  check_shapes(q, k, v);
  if (!std::isfinite(scale))
    refuse("scale: expected a finite number; got " + std::to_string(scale));
  Attention p = {};
  p.batch = q.shape[0];
  p.heads = q.shape[1];
  p.shared_heads = k.shape[1];
  p.queries = q.shape[2];
  p.keys = k.shape[2];
  p.size = q.shape[3];
  p.q = strides_of(q);
  p.k = strides_of(k);
  p.v = strides_of(v);
  p.out = result_strides(out, "out", q.shape);
  p.causal = causal;
  p.scale = static_cast<float>(scale);
  p.element = element;
  p.mask_element = mask_element;
  if (given.mask) p.mask = broadcast(*given.mask, "mask", {p.batch, p.heads, p.queries, p.keys});
  if (given.logsumexp) {
    expect_shape(*given.logsumexp, "logsumexp", {p.batch, p.heads, p.queries});
    expect_distinct(*given.logsumexp, "logsumexp");
    p.logsumexp = strides_of(*given.logsumexp);
  }
  return p;
}

Array described(const Shape& shape, const Shape& strides, const char* name) {
  if (shape.size() != strides.size()) {
    refuse(std::string(name) + ": expected as many strides as dimensions; got strides " +
           describe(strides) + " for shape " + describe(shape));
  }
  Array array;
  array.shape = shape;
  array.strides = strides;
  return array;
}

namespace {

const AttentionPass& pass_of(const Attention& p) {
  return *(p.element == Element::kBfloat16 ? kernels().attention_bf16 : kernels().attention);
}

// Needs no lock of Python.
Outcome attend(const Attention& p, AttentionCall call) {
  if (p.batch == 0 || p.heads == 0 || p.queries == 0) return Outcome::kDone;
  const AttentionPass& pass = pass_of(p);
  call.scratch = scratch(pass.scratch_floats(p, call.threads));
  if (!call.scratch) return Outcome::kNoMemory;
  pass.run(p, call);
  return guard_stands() ? Outcome::kDone : Outcome::kGuardBroken;
}

void run_attention(const Attention& p, const AttentionCall& call) {
  Outcome outcome;
  {
    nb::gil_scoped_release release;
    outcome = attend(p, call);
  }
  if (outcome == Outcome::kNoMemory) {
    const long floats = pass_of(p).scratch_floats(p, call.threads);
    refuse("scratch: no memory for " + std::to_string(floats * 4) + " bytes of attention");
  }
  if (outcome == Outcome::kDone) return;
  PyErr_SetString(PyExc_SystemError, "bestof: attention wrote past its scratch");
  throw nb::python_error();
}

void attention(nb::handle q, nb::handle k, nb::handle v, nb::handle mask, nb::handle out,
               nb::handle logsumexp, bool causal, double scale, const std::string& dtype,
               const std::string& mask_dtype, int threads) {
  const Element element = element_of(dtype), mask_element = element_of(mask_dtype);
  const Array queries = read_strided(q, "q", element), keys = read_strided(k, "k", element);
  const Array values = read_strided(v, "v", element), result = write_strided(out, "out", element);
  Array added, sums;
  if (!mask.is_none()) added = read_strided(mask, "mask", mask_element);
  if (!logsumexp.is_none()) sums = write_strided(logsumexp, "logsumexp", Element::kFloat32);
  const Attention p =
      make_attention({queries, keys, values, result, mask.is_none() ? nullptr : &added,
                      logsumexp.is_none() ? nullptr : &sums},
                     causal, scale, element, mask_element);
  std::vector<std::pair<const Array*, const char*>> others = {
      {&queries, "q"}, {&keys, "k"}, {&values, "v"}};
  if (!mask.is_none()) others.push_back({&added, "mask"});
  for (const auto& [array, name] : others) expect_apart(result, "out", *array, name);
  if (!logsumexp.is_none()) {
    others.push_back({&result, "out"});
    for (const auto& [array, name] : others) expect_apart(sums, "logsumexp", *array, name);
  }
  run_attention(p, {queries.data, keys.data, values.data, added.data, result.data, sums.floats(),
                    nullptr, threads_of(threads)});
}

// Attention whose shapes and strides were checked once.
struct AttentionPlan final : Runnable {
  Attention problem;
  bool masks, sums;
  int threads;
  std::string isa = kernels().isa;

  AttentionPlan(const Attention& p, bool has_mask, bool has_sums, int most)
      : problem(p), masks(has_mask), sums(has_sums), threads(most) {}

  bool run_on(const void* const* operands, void* const* results, const void*) const override {
    if (isa != kernels().isa) return false;
    const int used = threads > 0 ? threads : omp_get_max_threads();
    const AttentionCall call = {operands[0], operands[1], operands[2],
                                operands[3], results[0],  static_cast<float*>(results[1]),
                                nullptr,     used};
    return attend(problem, call) == Outcome::kDone;
  }
};

void run_plan(const AttentionPlan& plan, std::size_t q, std::size_t k, std::size_t v,
              std::size_t mask, std::size_t out, std::size_t logsumexp) {
  if (plan.masks != (mask != 0) || plan.sums != (logsumexp != 0)) {
    refuse("addresses: expected a mask and a logsumexp if the plan has them, else 0");
  }
  run_attention(plan.problem,
                {reinterpret_cast<const void*>(q), reinterpret_cast<const void*>(k),
                 reinterpret_cast<const void*>(v), reinterpret_cast<const void*>(mask),
                 reinterpret_cast<void*>(out), reinterpret_cast<float*>(logsumexp), nullptr,
                 threads_of(plan.threads)});
}

void bind_attention_plan(nb::module_& m) {
  nb::class_<AttentionPlan>(m, "AttentionPlan")
      .def("__init__",
           [](AttentionPlan* self, const std::vector<Shape>& shapes,
              const std::vector<Shape>& strides, bool masks, bool sums, bool causal, double scale,
              const std::string& dtype, const std::string& mask_dtype, int threads) {
             const char* names[] = {"q", "k", "v", "out", "mask", "logsumexp"};
             Array arrays[6];
             for (int i = 0; i < 6; ++i) arrays[i] = described(shapes[i], strides[i], names[i]);
             const AttentionOperands operands = {arrays[0],
                                                 arrays[1],
                                                 arrays[2],
                                                 arrays[3],
                                                 masks ? &arrays[4] : nullptr,
                                                 sums ? &arrays[5] : nullptr};
             new (self) AttentionPlan(
                 make_attention(operands, causal, scale, element_of(dtype), element_of(mask_dtype)),
                 masks, sums, threads);
           })
      .def("run", &run_plan)
      .def_prop_ro("address", [](const AttentionPlan& plan) { return plan.address(); });
}

}  // namespace

void bind_attention(nb::module_& m) {
  bind_attention_plan(m);
  m.def("attention", &attention, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
        nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
}

}  // namespace bestof
