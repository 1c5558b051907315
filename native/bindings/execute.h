// Runs a pass of an algorithm with scratch of the calling thread.
#pragma once
#include "bindings/problem.h"

namespace bestof {

long packed_floats(const Pass& pass, const Problem& p);

// Floats of packed weights and scratch together, the packed weights rounded to a cache line.
long run_floats(const Pass& pass, const Problem& p, int threads);

// As many as OpenMP uses for 0; refuses what is none.
int threads_of(int threads);

enum class Outcome { kDone, kNoMemory, kGuardBroken };

// Weights are packed first with `pack`. Needs no lock of Python's; nothing is written where memory
// is short.
Outcome compute(const Pass& pass, Direction direction, const Problem& p, Call call, bool pack);

// The same without Python's lock, which the caller holds; raises what went wrong.
void execute(const Pass& pass, Direction direction, const Problem& p, const Call& call, bool pack);

}  // namespace bestof
