// Attention for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "attention/forward.h"
#include "bindings/arena.h"
#include "bindings/execute.h"
#include "bindings/module.h"
#include "bindings/problem.h"

namespace bestof {
namespace {

Array read_heads(nb::handle value, const char* name) {
  Array array = read_strided(value, name, Element::kFloat32);
  if (array.shape.size() != 4) {
    refuse(std::string(name) + ": expected shape (batch, heads, tokens, size); got " +
           describe(array.shape));
  }
  return array;
}

HeadStrides strides_of(const Array& array) {
  return {array.strides[0], array.strides[1], array.strides[2]};
}

void expect_side_by_side(const Array& array, const char* name) {
  if (array.count() > 0 && array.shape[3] > 1 && array.strides[3] != 1) {
    refuse(std::string(name) + ": expected the numbers of a token side by side; got strides " +
           describe(array.strides) + ": copy it");
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

// Strides with which a mask of at most 4 axes is read for `shape`, (batch, heads, queries, keys).
MaskStrides broadcast(const Array& mask, const std::vector<long>& shape) {
  long strides[4] = {};
  const std::size_t rank = mask.shape.size();
  bool fits = rank <= 4;
  for (std::size_t i = 0; fits && i < rank; ++i) {
    const std::size_t axis = 4 - rank + i;
    if (mask.shape[i] == shape[axis]) {
      strides[axis] = mask.strides[i];
    } else {
      fits = mask.shape[i] == 1;
    }
  }
  if (!fits) {
    refuse("mask: expected a shape that broadcasts to " + describe(shape) + "; got " +
           describe(mask.shape));
  }
  return {strides[0], strides[1], strides[2], strides[3]};
}

void run_attention(const Attention& p, AttentionCall call) {
  const AttentionPass& pass = *kernels().attention;
  const long floats = pass.scratch_floats(p, call.threads);
  call.scratch = scratch(floats);
  if (!call.scratch)
    refuse("scratch: no memory for " + std::to_string(floats * 4) + " bytes of attention");
  bool intact;
  {
    nb::gil_scoped_release release;
    pass.run(p, call);
    intact = guard_stands();
  }
  if (intact) return;
  PyErr_SetString(PyExc_SystemError, "bestof: attention wrote past its scratch");
  throw nb::python_error();
}

void attention(nb::handle q, nb::handle k, nb::handle v, nb::handle mask, nb::handle out,
               nb::handle logsumexp, bool causal, double scale, int threads) {
  const Array queries = read_heads(q, "q"), keys = read_heads(k, "k"), values = read_heads(v, "v");
  const Array result = write_strided(out, "out", Element::kFloat32);
  check_shapes(queries, keys, values);
  expect_shape(result, "out", queries.shape);
  const std::pair<const Array*, const char*> operands[] = {
      {&queries, "q"}, {&keys, "k"}, {&values, "v"}};
  for (const auto& [array, name] : operands) {
    expect_side_by_side(*array, name);
    expect_apart(result, "out", *array, name);
  }
  expect_side_by_side(result, "out");
  expect_distinct(result, "out");
  if (!std::isfinite(scale))
    refuse("scale: expected a finite number; got " + std::to_string(scale));
  Attention p = {};
  p.batch = queries.shape[0];
  p.heads = queries.shape[1];
  p.shared_heads = keys.shape[1];
  p.queries = queries.shape[2];
  p.keys = keys.shape[2];
  p.size = queries.shape[3];
  p.q = strides_of(queries);
  p.k = strides_of(keys);
  p.v = strides_of(values);
  p.out = strides_of(result);
  p.causal = causal;
  p.scale = static_cast<float>(scale);
  Array added, sums;
  if (!mask.is_none()) {
    added = read_strided(mask, "mask", Element::kFloat32);
    p.mask = broadcast(added, {p.batch, p.heads, p.queries, p.keys});
    expect_apart(result, "out", added, "mask");
  }
  if (!logsumexp.is_none()) {
    sums = write_strided(logsumexp, "logsumexp", Element::kFloat32);
    expect_shape(sums, "logsumexp", {p.batch, p.heads, p.queries});
    expect_distinct(sums, "logsumexp");
    for (const auto& [array, name] : operands) expect_apart(sums, "logsumexp", *array, name);
    expect_apart(sums, "logsumexp", added, "mask");
    expect_apart(sums, "logsumexp", result, "out");
    p.logsumexp = strides_of(sums);
  }
  threads = threads_of(threads);
  if (p.batch == 0 || p.heads == 0 || p.queries == 0) return;
  run_attention(p, {queries.floats(), keys.floats(), values.floats(), added.floats(),
                    result.floats(), sums.floats(), nullptr, threads});
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("attention", &attention, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
        nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
}

}  // namespace bestof
