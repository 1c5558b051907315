// Finds the instruction sets that this build has kernels for and that this processor can run.
#pragma once

namespace bestof {

struct Kernels;

// Returns the kernels of one instruction set. Returns null if this build has none of that name, or
// if the processor lacks it.
const Kernels* kernels_for(const char* name);

// Returns the kernels of the best instruction set that the processor can run.
const Kernels* best_kernels();

// Returns the names of the instruction sets of this build, best first, and their number.
const char* const* isa_names(int* count);
bool isa_runs(const char* name);

// Returns the bytes of the level 2 cache of a core; 1 MiB if the system does not tell.
long level2_bytes();

// Returns the bytes of the level 3 cache, which cores share; 32 MiB if the system does not tell.
long level3_bytes();

// For tests: makes kernels assume a level 3 cache of this size; 0: the real one.
void assume_level3(long bytes);

}  // namespace bestof
