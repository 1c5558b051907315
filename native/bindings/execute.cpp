#include "bindings/execute.h"

#include <omp.h>

#include "bindings/arena.h"

namespace bestof {

long packed_floats(const Pass& pass, const Problem& p) {
  return pass.packed_floats ? pass.packed_floats(p) : 0;
}

long run_floats(const Pass& pass, const Problem& p, int threads) {
  return (packed_floats(pass, p) + 15) / 16 * 16 + pass.scratch_floats(p, threads);
}

int threads_of(int threads) {
  if (threads < 0 || threads > 4096)
    refuse("threads: expected 1 to 4096; got " + std::to_string(threads));
  return threads > 0 ? threads : omp_get_max_threads();
}

Outcome compute(const Pass& pass, Direction direction, const Problem& p, Call call, bool pack) {
  if (p.batch == 0) {
    // Without images only the weight gradient has elements, which are zero.
    if (direction == Direction::kBackwardWeight) {
      float* gradient = static_cast<float*>(call.result);
      for (long i = 0;
           i < p.out_channels * p.kernel_height * p.kernel_width * (p.in_channels / p.groups);
           ++i) {
        gradient[i] = 0.0f;
      }
    }
    return Outcome::kDone;
  }
  const long packed = pack ? (packed_floats(pass, p) + 15) / 16 * 16 : 0;
  float* memory = scratch(packed + pass.scratch_floats(p, call.threads));
  if (!memory) return Outcome::kNoMemory;
  call.scratch = memory + packed;
  if (packed) {
    pass.pack(p, call.second, memory, call.threads);
    call.second = memory;
  }
  pass.run(p, call);
  return guard_stands() ? Outcome::kDone : Outcome::kGuardBroken;
}

void execute(const Pass& pass, Direction direction, const Problem& p, const Call& call, bool pack) {
  Outcome outcome;
  {
    nb::gil_scoped_release release;
    outcome = compute(pass, direction, p, call, pack);
  }
  if (outcome == Outcome::kNoMemory) {
    refuse("scratch: no memory for " + std::to_string(run_floats(pass, p, call.threads) * 4) +
           " bytes");
  }
  if (outcome == Outcome::kGuardBroken) {
    PyErr_SetString(PyExc_SystemError,
                    ("bestof: a kernel wrote past its scratch for " + describe_problem(p)).c_str());
    throw nb::python_error();
  }
}

}  // namespace bestof
