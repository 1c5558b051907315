// The most multiply-adds that a processor does: what kernels are measured against.
#pragma once

namespace bestof {

// Runs `steps` rounds of multiply-adds in registers on every thread, and returns how many FLOPs these were in all.
using MultiplyAdds = double(long steps, int threads);

namespace baseline {
MultiplyAdds multiply_adds;
}
#if defined(__x86_64__)
namespace avx2 {
MultiplyAdds multiply_adds;
}
namespace avx512 {
MultiplyAdds multiply_adds;
}
#endif

}  // namespace bestof
