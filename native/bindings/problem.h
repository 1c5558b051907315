// Makes problems from the arguments of Python, and finds the algorithm that computes them.
#pragma once
#include <string>
#include <tuple>
#include <vector>

#include "bindings/array.h"
#include "conv/algorithm.h"

namespace bestof {

using Shape = std::vector<long>;

enum class Direction { kForward, kBackwardInput, kBackwardWeight };

Direction direction_of(const std::string& name);
Activation activation_of(const std::string& name);
// Whether a larger argument may give a smaller result.
bool may_fall(Activation activation, float slope);
Element element_of(const std::string& name);
// Returns the names of the types of operands, results and sums, a triple for each type.
std::vector<std::tuple<std::string, std::string, std::string>> names_of(const DtypeColumns& dtypes);

// `numbers`: stride y, x; pads top, bottom, left, right; dilation y, x; groups. x is (N, C, H, W)
// where it lies in planes.
Problem make_problem(const Shape& x, const Shape& w, const Shape& numbers, const std::string& dtype,
                     bool planes = false);

// Refuses pixels of results that lie closer than their channels.
void expect_pitch(long pitch, long channels);

Shape x_shape(const Problem& p);
Shape w_shape(const Problem& p);
Shape y_shape(const Problem& p);
std::string describe_problem(const Problem& p);

const Pass& pass_of(const Algorithm& algorithm, Direction direction);

// Returns the row of that name; refuses one that does not apply.
const Algorithm& find_algorithm(const std::string& name, Direction direction, const Problem& p);
const Pass& find_pass(const std::string& name, Direction direction, const Problem& p);

}  // namespace bestof
