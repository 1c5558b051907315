// Focal loss for Python.
#include "loss/focal.h"

#include <nanobind/nanobind.h>

#include <cmath>
#include <string>
#include <vector>

#include "bindings/array.h"
#include "bindings/execute.h"
#include "bindings/module.h"

namespace bestof {
namespace {

// Returns the sum of the losses. Writes one loss an element to `loss`, unless it is None.
double focal_loss(nb::handle x, nb::handle y, nb::handle loss, nb::handle gradient, float alpha,
                  float gamma, float scale, int threads) {
  const Array logits = read_array(x, "x", kAnyRank), targets = read_array(y, "targets", kAnyRank);
  const Array slope = write_array(gradient, "gradient", kAnyRank);
  expect_shape(targets, "targets", logits.shape);
  expect_shape(slope, "gradient", logits.shape);
  expect_apart(slope, "gradient", logits, "x");
  expect_apart(slope, "gradient", targets, "targets");
  Array losses;
  if (!loss.is_none()) {
    losses = write_array(loss, "loss", kAnyRank);
    expect_shape(losses, "loss", logits.shape);
    expect_apart(losses, "loss", logits, "x");
    expect_apart(losses, "loss", targets, "targets");
    expect_apart(losses, "loss", slope, "gradient");
  }
  if (!(gamma >= 0.0f) || std::isinf(gamma)) {
    refuse("gamma: expected a finite number of at least 0; got " + std::to_string(gamma));
  }
  if (!(alpha <= 1.0f))
    refuse("alpha: expected at most 1, or a negative number for none; got " +
           std::to_string(alpha));
  if (!std::isfinite(scale))
    refuse("scale: expected a finite number; got " + std::to_string(scale));
  const int team = threads_of(threads);
  std::vector<double> sums(focal_parts(logits.count()));
  double sum = 0.0;
  {
    nb::gil_scoped_release release;
    kernels().focal_loss({logits.count(), alpha, gamma, scale}, logits.floats(), targets.floats(),
                         losses.floats(), slope.floats(), sums.data(), team);
    for (double part : sums) sum += part;
  }
  return sum;
}

}  // namespace

void bind_focal_loss(nb::module_& m) {
  m.def("focal_loss", &focal_loss, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg());
}

}  // namespace bestof
