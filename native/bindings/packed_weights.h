// Weights in an algorithm's own layout, packed once for many forward passes.
#pragma once
#include <memory>
#include <string>

#include "bindings/arena.h"
#include "bindings/problem.h"

namespace bestof {

struct PackedWeights {
  std::string algorithm, isa;
  Shape shape;
  long groups, bytes;
  Memory memory;
};

std::unique_ptr<PackedWeights> pack_weights(nb::handle w, const std::string& algorithm, long groups,
                                            const std::string& dtype, int threads);

// Returns the packed memory; refuses weights that were packed for another problem or algorithm.
const void* packed_data(const PackedWeights& w, const std::string& algorithm, const Problem& p);

}  // namespace bestof
