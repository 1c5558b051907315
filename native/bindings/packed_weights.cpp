#include "bindings/packed_weights.h"

#include "bindings/module.h"

namespace bestof {
namespace {

// Returns the stride that an algorithm is written for, or 1 where it takes any.
long stride_of(const std::string& name) {
  for (int i = 0; i < kernels().algorithm_count; ++i) {
    const Algorithm& algorithm = kernels().algorithms[i];
    if (name == algorithm.name && algorithm.domain.stride > 0) return algorithm.domain.stride;
  }
  return 1;
}

}  // namespace

std::unique_ptr<PackedWeights> pack_weights(nb::handle w, const std::string& algorithm, long groups,
                                            const std::string& dtype, int threads) {
  const Array weights = read_array(w, "w", 4, element_of(dtype));
  const Shape& s = weights.shape;
  if (groups < 1) refuse("groups: expected positive integers; got " + std::to_string(groups));
  const long stride = stride_of(algorithm);
  const Problem p = make_problem({1, s[1], s[2], s[3] * groups}, s,
                                 {stride, stride, 0, 0, 0, 0, 1, 1, groups}, dtype);
  const Pass& pass = find_pass(algorithm, Direction::kForward, p);
  if (!pass.pack) refuse("algorithm: expected one that packs weights; got " + algorithm);
  const long floats = pass.packed_floats(p);
  auto packed = std::make_unique<PackedWeights>(
      PackedWeights{algorithm, kernels().isa, s, groups, floats * 4, allocate(floats)});
  if (!packed->memory)
    refuse("w: no memory for " + std::to_string(floats * 4) + " bytes of packed weights");
  nb::gil_scoped_release release;
  pass.pack(p, weights.data, packed->memory.get(), threads);
  return packed;
}

const void* packed_data(const PackedWeights& w, const std::string& algorithm, const Problem& p) {
  if (w.isa != kernels().isa) {
    refuse("w: expected weights packed for " + std::string(kernels().isa) + "; got some for " +
           w.isa + ": pack again");
  }
  if (w.algorithm != algorithm) {
    refuse("w: expected weights packed for " + algorithm + "; got some for " + w.algorithm);
  }
  if (w.shape != w_shape(p) || w.groups != p.groups) {
    refuse("w: expected packed weights of shape " + describe(w_shape(p)) + " and groups " +
           std::to_string(p.groups) + "; got " + describe(w.shape) + " and " +
           std::to_string(w.groups));
  }
  return w.memory.get();
}

}  // namespace bestof
