// The instruction sets of this build: a namespace each. BESTOF_BASELINE_ONLY builds what an unknown
// processor would get.
#pragma once

// Declares the same in each of them: BESTOF_EACH_ISA(void f(int););
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
  }
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
