// Which instruction sets this build has kernels for, and which of them this processor can run.
#pragma once

namespace bestof {

struct Kernels;

// The kernels of one instruction set, or null where `name` is none of this build, or the processor
// lacks it.
const Kernels* kernels_for(const char* name);

// The best that the processor can run.
const Kernels* best_kernels();

// The names of the instruction sets of this build, best first, and how many.
const char* const* isa_names(int* count);
bool isa_runs(const char* name);

// Bytes of the level 2 cache of a core; 1 MiB where the system does not tell.
long level2_bytes();

// Bytes of the level 3 cache, which cores share; 32 MiB where the system does not tell.
long level3_bytes();

// For tests: kernels believe in a level 3 cache of so many bytes; 0: in the one that is there.
void assume_level3(long bytes);

}  // namespace bestof
