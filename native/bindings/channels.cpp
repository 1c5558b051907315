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
  long sources;
  ChannelProblem problem;

  // given: source, width, first, count, at.
  ChannelPlan(long pixels, long channels, long step, const std::string& dtype,
              const std::vector<std::array<long, 5>>& given)
      : sources(0), problem{pixels, channels, step, element_of(dtype), nullptr, 0} {
    for (const auto& [source, width, first, count, at] : given) {
      const bool reads = source >= 0 && first >= 0 && count > 0 && first <= width - count;
      if (!reads || step < 1 || at < 0 || at > channels - 1 - (count - 1) * step)
        refuse("runs: expected channels of a source, and their places in the result");
      runs.push_back({source, width, first, count, at});
      if (source >= sources) sources = source + 1;
    }
  }

  void run(const std::vector<std::size_t>& addresses, std::size_t y) const {
    if (static_cast<long>(addresses.size()) < sources)
      refuse("addresses: expected one for each source; got " + std::to_string(addresses.size()));
    ChannelProblem p = problem;
    p.runs = runs.data();
    p.run_count = static_cast<long>(runs.size());
    const void* const* from = reinterpret_cast<const void* const*>(addresses.data());
    nb::gil_scoped_release release;
    kernels().gather_channels(p, from, reinterpret_cast<void*>(y), omp_get_max_threads());
  }
};

}  // namespace

void bind_channels(nb::module_& m) {
  nb::class_<ChannelPlan>(m, "ChannelPlan")
      .def(
          nb::init<long, long, long, const std::string&, const std::vector<std::array<long, 5>>&>())
      .def("run", &ChannelPlan::run);
}

}  // namespace bestof
