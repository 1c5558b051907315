// Channels gathered into one value, for Python.
#include "channels/channels.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <omp.h>

#include <array>
#include <string>
#include <vector>

#include "bindings/array.h"
#include "bindings/module.h"
#include "bindings/problem.h"

namespace bestof {
namespace {

// A problem that was checked once. It runs on addresses, which it does not check.
struct ChannelPlan {
  std::vector<ChannelRun> runs;
  std::vector<float> scale, shift;
  long sources;
  ChannelProblem problem;

  // given: source, width, first, count, at.
  ChannelPlan(long pixels, long channels, long step, const std::string& dtype,
              const std::vector<std::array<long, 5>>& given)
      : sources(0), problem{pixels, channels, step, element_of(dtype), nullptr, 0, {}} {
    for (const auto& [source, width, first, count, at] : given) {
      const bool reads = source >= 0 && first >= 0 && count > 0 && first <= width - count;
      if (!reads || step < 1 || at < 0 || at > channels - 1 - (count - 1) * step)
        refuse("runs: expected channels of a source, and their places in the result");
      runs.push_back({source, width, first, count, at});
      if (source >= sources) sources = source + 1;
    }
  }

  // Copies the numbers of a norm, one a channel.
  void set_norm(nb::handle by, nb::handle plus, const std::string& activation, float slope) {
    if (problem.step != 1) refuse("scale, shift: expected channels in order, without a shuffle");
    const Array factors = read_array(by, "scale", 1), terms = read_array(plus, "shift", 1);
    expect_shape(factors, "scale", {problem.channels});
    expect_shape(terms, "shift", {problem.channels});
    problem.norm.activation = activation_of(activation);
    problem.norm.slope = slope;
    scale.assign(factors.floats(), factors.floats() + problem.channels);
    shift.assign(terms.floats(), terms.floats() + problem.channels);
  }
};

// A plan on the addresses of one binding: a list of 60 would take a microsecond to read.
struct BoundChannels {
  ChannelPlan plan;
  std::vector<std::size_t> sources;
  std::size_t residual, y;

  BoundChannels(const ChannelPlan& one, const std::vector<std::size_t>& from, std::size_t added,
                std::size_t to)
      : plan(one), sources(from), residual(added), y(to) {
    if (static_cast<long>(sources.size()) < plan.sources)
      refuse("addresses: expected one for each source; got " + std::to_string(sources.size()));
    if (residual && plan.scale.empty()) refuse("residual: expected none where there is no norm");
  }

  void run() const {
    ChannelProblem p = plan.problem;
    p.runs = plan.runs.data();
    p.run_count = static_cast<long>(plan.runs.size());
    if (!plan.scale.empty()) {
      p.norm.scale = plan.scale.data();
      p.norm.shift = plan.shift.data();
    }
    const void* const* from = reinterpret_cast<const void* const*>(sources.data());
    nb::gil_scoped_release release;
    kernels().gather_channels(p, from, reinterpret_cast<const void*>(residual),
                              reinterpret_cast<void*>(y), omp_get_max_threads());
  }
};

}  // namespace

void bind_channels(nb::module_& m) {
  nb::class_<ChannelPlan>(m, "ChannelPlan")
      .def(
          nb::init<long, long, long, const std::string&, const std::vector<std::array<long, 5>>&>())
      .def("set_norm", &ChannelPlan::set_norm);
  nb::class_<BoundChannels>(m, "BoundChannels")
      .def(
          nb::init<const ChannelPlan&, const std::vector<std::size_t>&, std::size_t, std::size_t>())
      .def("run", &BoundChannels::run);
}

}  // namespace bestof
