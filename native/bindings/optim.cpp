// Steps of optimizers for Python.
#include <nanobind/nanobind.h>

#include <cfloat>
#include <cmath>
#include <vector>

#include "bindings/array.h"
#include "bindings/execute.h"
#include "bindings/module.h"
#include "optim/lamb.h"

namespace bestof {
namespace {

// Returns lr |x| / |u|, at most the largest float. NaN stays NaN.
float rate_of(const std::vector<double>& sums, double lr) {
  double squares[2] = {};
  for (std::size_t i = 0; i < sums.size(); ++i) squares[i % 2] += sums[i];
  const double length = std::sqrt(squares[0]), norm = std::sqrt(squares[1]);
  const double rate = length == 0.0 || norm == 0.0 ? lr : lr * (length / norm);
  return static_cast<float>(rate > FLT_MAX ? FLT_MAX : rate);
}

void lamb(nb::handle param, nb::handle grad, nb::handle exp_avg, nb::handle exp_avg_sq, float first,
          float first_rest, float second, float second_rest, float factor, float term, float decay,
          double lr, int threads) {
  const Array x = write_array(param, "param", kAnyRank), g = read_array(grad, "grad", kAnyRank);
  const Array m = write_array(exp_avg, "exp_avg", kAnyRank);
  const Array v = write_array(exp_avg_sq, "exp_avg_sq", kAnyRank);
  expect_shape(g, "grad", x.shape);
  expect_shape(m, "exp_avg", x.shape);
  expect_shape(v, "exp_avg_sq", x.shape);
  expect_apart(x, "param", g, "grad");
  expect_apart(x, "param", m, "exp_avg");
  expect_apart(x, "param", v, "exp_avg_sq");
  expect_apart(m, "exp_avg", g, "grad");
  expect_apart(m, "exp_avg", v, "exp_avg_sq");
  expect_apart(v, "exp_avg_sq", g, "grad");
  const LambProblem p = {x.count(), first, first_rest, second, second_rest, factor, term, decay};
  const int team = threads_of(threads);
  std::vector<double> sums(2 * lamb_parts(p.count));
  nb::gil_scoped_release release;
  kernels().lamb_moments(p, x.floats(), g.floats(), m.floats(), v.floats(), sums.data(), team);
  kernels().lamb_update(p, rate_of(sums, lr), m.floats(), v.floats(), x.floats(), team);
}

}  // namespace

void bind_optim(nb::module_& m) {
  m.def("lamb", &lamb);
}

}  // namespace bestof
