// Runs a pass of an algorithm with the scratch of the calling thread.
#pragma once
#include "bindings/problem.h"

namespace bestof {

long packed_floats(const Pass& pass, const Problem& p);

// Returns the floats of packed weights, rounded to a cache line, and of scratch together.
long run_floats(const Pass& pass, const Problem& p, int threads);

// Returns the number of threads: that of OpenMP for 0. Refuses negative and absurd ones.
int threads_of(int threads);

enum class Outcome { kDone, kNoMemory, kGuardBroken };

// Runs a pass, without a lock of Python. If `pack`, packs the weights first. Writes nothing if
// memory is short.
Outcome compute(const Pass& pass, Direction direction, const Problem& p, Call call, bool pack);

// Releases Python's lock, which the caller holds, and runs a pass; raises a failure.
void execute(const Pass& pass, Direction direction, const Problem& p, const Call& call, bool pack);

}  // namespace bestof
