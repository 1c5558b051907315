// The instruction sets of this build, with a namespace for each. BESTOF_BASELINE_ONLY builds only
// what runs on an unknown processor.
#pragma once

// The build defines BESTOF_HAS_AMX if the compiler knows AMX.
#if defined(BESTOF_HAS_AMX)
#define BESTOF_IF_AMX(...) \
  namespace amx_bf16 {     \
  __VA_ARGS__              \
  }
#else
#define BESTOF_IF_AMX(...)
#endif

// Declares its argument in each namespace: BESTOF_EACH_ISA(void f(int););
#if defined(BESTOF_BASELINE_ONLY)
#define BESTOF_EACH_ISA(...) \
  namespace baseline {       \
  __VA_ARGS__                \
  }
#elif defined(__x86_64__)
#define BESTOF_EACH_ISA(...) \
  namespace baseline {       \
  __VA_ARGS__                \
  }                          \
  namespace avx2 {           \
  __VA_ARGS__                \
  }                          \
  namespace avx512 {         \
  __VA_ARGS__                \
  }                          \
  namespace avx512_bf16 {    \
  __VA_ARGS__                \
  }                          \
  BESTOF_IF_AMX(__VA_ARGS__)
#elif defined(__aarch64__)
#define BESTOF_EACH_ISA(...) \
  namespace neon {           \
  __VA_ARGS__                \
  }
#else
#define BESTOF_EACH_ISA(...) \
  namespace baseline {       \
  __VA_ARGS__                \
  }
#endif
