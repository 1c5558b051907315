// Compiled without any flag of an instruction set: this code decides whether others may run.
#include "simd/isa.h"

#include <unistd.h>

#include <cstring>

#include "simd/kernels.h"

namespace bestof {
namespace {

#if defined(__x86_64__)
constexpr const char* kNames[] = {"avx512", "avx2", "baseline"};
#else
constexpr const char* kNames[] = {"baseline"};
#endif

long assumed_level3 = 0;

}  // namespace

const char* const* isa_names(int* count) {
  *count = sizeof(kNames) / sizeof(kNames[0]);
  return kNames;
}

bool isa_runs(const char* name) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!std::strcmp(name, "avx512")) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma");
  }
  if (!std::strcmp(name, "avx2")) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return !std::strcmp(name, "baseline");
}

const Kernels* kernels_for(const char* name) {
  if (!isa_runs(name)) return nullptr;
#if defined(__x86_64__)
  if (!std::strcmp(name, "avx512")) return &avx512::kKernels;
  if (!std::strcmp(name, "avx2")) return &avx2::kKernels;
#endif
  return &baseline::kKernels;
}

const Kernels* best_kernels() {
  int count = 0;
  const char* const* names = isa_names(&count);
  for (int i = 0; i < count; ++i) {
    if (isa_runs(names[i])) return kernels_for(names[i]);
  }
  return &baseline::kKernels;
}

long level2_bytes() {
  static const long bytes = [] {
    const long told = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return told > 0 ? told : 1L << 20;
  }();
  return bytes;
}

long level3_bytes() {
  if (assumed_level3 > 0) return assumed_level3;
  static const long bytes = [] {
    const long told = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return told > 0 ? told : 32L << 20;
  }();
  return bytes;
}

void assume_level3(long bytes) {
  assumed_level3 = bytes;
}

}  // namespace bestof
