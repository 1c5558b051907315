// Answers the calls of one operation, of one or several operators.
#pragma once
#include <string>
#include <vector>

#include "entries.h"
#include "native.h"
#include "operator_call.h"
#include "rules.h"
#include "shim.h"

namespace shim {

// Calls that no rule chooses go straight to PyTorch's kernel, which reads their sizes and nothing
// else. Python answers calls that are not decided: it is given all arguments of the operator, and
// before them the place of the operator if there are several.
class OperatorShim final : public Shim {
 public:
  // `originals` are PyTorch's kernels, in the order of the operators; `kept` keeps them. `least` is
  // in the units of the rule. Python answers every call that records gradients while the dict
  // `waiting` is not empty. The shim takes the references.
  OperatorShim(Conversions conversions, PyObject* answer, PyObject* kept,
               std::vector<Operator> operators, std::vector<KernelFunction> originals,
               const Rule& rule, double least, PyObject* waiting, PyObject* first_only);
  ~OperatorShim() override;

  bool put_in(const char* key) override;
  void take_out() override;

  // Computes a call into its results. Returns false, without results, if PyTorch's kernel is to
  // compute it.
  bool answer(OperatorCall& call);
  const KernelFunction& original(int place) const { return originals_[place]; }
  int operators() const { return static_cast<int>(operators_.size()); }
  const Operator& entry(int place) const { return operators_[place]; }
  // Counts the questions that Python was asked.
  uint64_t asked() const { return asked_.load(std::memory_order_relaxed); }

 private:
  PyObject *answer_, *kept_, *waiting_;
  std::vector<Operator> operators_;
  std::vector<KernelFunction> originals_;
  const Rule& rule_;
  double least_;
  stable::Library library_ = nullptr;
  std::atomic<uint64_t> asked_{0};
};

}  // namespace shim
