// Compiled without flags of an instruction set, because this code decides which of them may run.
#include "simd/isa.h"

#include <unistd.h>

#include <cstring>
#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#endif

#include "simd/kernels.h"

namespace bestof {
namespace {

struct Isa {
  const char* name;
  bool (*runs)();
  const Kernels* kernels;
};

bool always() {
  return true;
}

#if defined(__x86_64__) && !defined(BESTOF_BASELINE_ONLY)
bool runs_avx512() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("fma");
}

bool runs_avx512_bf16() {
  return runs_avx512() && __builtin_cpu_supports("avx512bf16");
}

#if defined(BESTOF_HAS_AMX)
// Whether the processor has tile registers with products of bfloat16, and Linux lets this process
// use them. Linux refuses if a thread has a signal stack that is too small for them.
bool runs_amx_bf16() {
  constexpr unsigned kProductsOfBfloat16 = 1u << 22, kTiles = 1u << 24;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned a, b, c, d = 0;
  if (!runs_avx512_bf16() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  if (~d & (kProductsOfBfloat16 | kTiles)) return false;
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}
#endif

bool runs_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif

// Best first. The last one runs everywhere: every 64-bit Arm processor has NEON.
constexpr Isa kIsas[] = {
#if defined(BESTOF_BASELINE_ONLY)
    {"baseline", always, &baseline::kKernels},
#elif defined(__x86_64__)
#if defined(BESTOF_HAS_AMX)
    {"amx_bf16", runs_amx_bf16, &amx_bf16::kKernels},
#endif
    {"avx512_bf16", runs_avx512_bf16, &avx512_bf16::kKernels},
    {"avx512", runs_avx512, &avx512::kKernels},
    {"avx2", runs_avx2, &avx2::kKernels},
    {"baseline", always, &baseline::kKernels},
#elif defined(__aarch64__)
    {"neon", always, &neon::kKernels},
#else
    {"baseline", always, &baseline::kKernels},
#endif
};
constexpr int kIsaCount = sizeof(kIsas) / sizeof(kIsas[0]);

const Isa* find_isa(const char* name) {
  for (const Isa& isa : kIsas) {
    if (!std::strcmp(isa.name, name)) return &isa;
  }
  return nullptr;
}

long assumed_level3 = 0;

// Returns the bytes of the unified cache of a level, as the processor reports it, or 0. Groups of
// cores share such a cache. The system's answer is useless on AMD: glibc 2.36 returns the sum over
// all groups, for example 320 MiB if each has 32.
long cache_bytes(unsigned level) {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  for (unsigned leaf : {0x8000001Du, 4u}) {  // AMD's and Intel's, of the same form
    for (unsigned cache = 0; __get_cpuid_count(leaf, cache, &a, &b, &c, &d) && a & 31; ++cache) {
      if ((a & 31) != 3 || (a >> 5 & 7) != level) continue;
      return ((b >> 22) + 1L) * ((b >> 12 & 1023) + 1) * ((b & 4095) + 1) * (c + 1L);
    }
  }
#endif
  (void)level;
  return 0;
}

}  // namespace

const char* const* isa_names(int* count) {
  static const char* names[kIsaCount];
  for (int i = 0; i < kIsaCount; ++i) names[i] = kIsas[i].name;
  *count = kIsaCount;
  return names;
}

bool isa_runs(const char* name) {
  const Isa* isa = find_isa(name);
  return isa && isa->runs();
}

const Kernels* kernels_for(const char* name) {
  return isa_runs(name) ? find_isa(name)->kernels : nullptr;
}

const Kernels* best_kernels() {
  for (const Isa& isa : kIsas) {
    if (isa.runs()) return isa.kernels;
  }
  return kIsas[kIsaCount - 1].kernels;
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
    long told = cache_bytes(3);
    if (told <= 0) told = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return told > 0 ? told : 32L << 20;
  }();
  return bytes;
}

void assume_level3(long bytes) {
  assumed_level3 = bytes;
}

}  // namespace bestof
