// Random problems through every row of the table, in buffers of exactly the promised size: built
// with AddressSanitizer and UndefinedBehaviorSanitizer, a single element out of place ends it.
// Compares with a naive double, too. Usage: fuzz SECONDS SEED [unwritten] With `unwritten`, results
// and scratch stay as they were allocated, which valgrind follows, instead of full of NaN.
#include <omp.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "fuzz/company.h"
#include "simd/isa.h"
#include "simd/kernels.h"

namespace {

using bestof::Problem;

using bestof::fuzz::Buffer;
using bestof::fuzz::Buffer16;
using bestof::fuzz::exact;
using bestof::fuzz::exact16;
using bestof::fuzz::pick;
using bestof::fuzz::value_of;

Problem random_problem(std::mt19937& random) {
  Problem p;
  for (;;) {
    const bool plain =
        pick(random, 0, 1) == 1;  // half of them a kernel and a stride that Winograd has
    const long own[][3] = {{3, 3, 1}, {3, 3, 1}, {1, 7, 1}, {7, 1, 1},
                           {5, 5, 1}, {3, 3, 2}, {7, 7, 2}};
    const long* kernel = own[pick(random, 0, 6)];
    p.batch = pick(random, 1, 3);
    p.in_height = pick(random, 1, 15);
    p.in_width = pick(random, 1, 15);
    p.groups = plain ? 1 : pick(random, 1, 4);
    const bool depthwise = !plain && pick(random, 0, 3) == 0;
    if (depthwise) p.groups = pick(random, 1, 40);
    p.in_channels = p.groups * (depthwise ? 1 : pick(random, 1, 40));
    p.out_channels = p.groups * (depthwise ? 1 : pick(random, 1, 40));
    if (plain && pick(random, 0, 3) == 0) {
      // Tiles enough for blocks of them, whose results may be streamed where they are whole
      // vectors.
      p.batch = pick(random, 2, 5);
      p.in_height = pick(random, 24, 32);
      p.in_width = pick(random, 24, 32);
      p.in_channels = pick(random, 1, 6);
      p.out_channels = 16 * pick(random, 1, 2);
    }
    if (!plain && pick(random, 0, 3) == 0) {
      // A linear layer of few rows.
      p.in_height = p.groups = p.kernel_height = p.kernel_width = 1;
      p.stride_y = p.stride_x = p.dilation_y = p.dilation_x = 1;
      p.pad_top = p.pad_bottom = p.pad_left = p.pad_right = 0;
      p.out_height = 1;
      p.out_width = p.in_width = pick(random, 1, 4);
      p.in_channels = pick(random, 1, 300);
      p.out_channels = pick(random, 1, 40);
      return p;
    }
    p.kernel_height = plain ? kernel[0] : pick(random, 1, 5);
    p.kernel_width = plain ? kernel[1] : pick(random, 1, 5);
    p.stride_y = plain ? kernel[2] : pick(random, 1, 3);
    p.stride_x = plain ? kernel[2] : pick(random, 1, 3);
    p.dilation_y = plain ? 1 : pick(random, 1, 2);
    p.dilation_x = plain ? 1 : pick(random, 1, 2);
    p.pad_top = pick(random, 0, 4);
    p.pad_bottom = pick(random, 0, 4);
    p.pad_left = pick(random, 0, 4);
    p.pad_right = pick(random, 0, 4);
    const long y =
        p.in_height + p.pad_top + p.pad_bottom - p.dilation_y * (p.kernel_height - 1) - 1;
    const long x = p.in_width + p.pad_left + p.pad_right - p.dilation_x * (p.kernel_width - 1) - 1;
    if (y < 0 || x < 0) continue;
    p.out_height = y / p.stride_y + 1;
    p.out_width = x / p.stride_x + 1;
    return p;
  }
}

// Calls f(x index, w index, y index) for every product of the convolution.
template <class F>
void each_product(const Problem& p, F f) {
  const long inputs = p.in_channels / p.groups, outputs = p.out_channels / p.groups;
  for (long n = 0; n < p.batch; ++n) {
    for (long oy = 0; oy < p.out_height; ++oy) {
      for (long ox = 0; ox < p.out_width; ++ox) {
        for (long r = 0; r < p.kernel_height; ++r) {
          for (long s = 0; s < p.kernel_width; ++s) {
            const long iy = oy * p.stride_y - p.pad_top + r * p.dilation_y;
            const long ix = ox * p.stride_x - p.pad_left + s * p.dilation_x;
            if (iy < 0 || iy >= p.in_height || ix < 0 || ix >= p.in_width) continue;
            for (long k = 0; k < p.out_channels; ++k) {
              for (long c = 0; c < inputs; ++c) {
                f(((n * p.in_height + iy) * p.in_width + ix) * p.in_channels +
                      k / outputs * inputs + c,
                  ((k * p.kernel_height + r) * p.kernel_width + s) * inputs + c,
                  ((n * p.out_height + oy) * p.out_width + ox) * p.out_channels + k);
              }
            }
          }
        }
      }
    }
  }
}

bool close(const float* got, const std::vector<double>& wanted, double error) {
  double square = 0;
  for (double v : wanted) square += v * v;
  const double scale = std::sqrt(square / static_cast<double>(wanted.size())) + 1e-3;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!(std::fabs(got[i] - wanted[i]) <= 40 * error * scale + 1e-4 * std::fabs(wanted[i])))
      return false;
  }
  return true;
}

int fail(const char* isa, const char* name, int direction, const Problem& p) {
  std::fprintf(stderr,
               "%s %s direction %d: wrong result for n%ld %ldx%ldx%ld k%ld %ldx%ld s%ld,%ld "
               "p%ld,%ld,%ld,%ld d%ld,%ld g%ld\n",
               isa, name, direction, p.batch, p.in_height, p.in_width, p.in_channels,
               p.out_channels, p.kernel_height, p.kernel_width, p.stride_y, p.stride_x, p.pad_top,
               p.pad_bottom, p.pad_left, p.pad_right, p.dilation_y, p.dilation_x, p.groups);
  return 1;
}

int try_problem(const bestof::Kernels& kernels, const Problem& p, std::mt19937& random) {
  const long x_count = p.batch * p.in_height * p.in_width * p.in_channels;
  const long w_count =
      p.out_channels * p.kernel_height * p.kernel_width * (p.in_channels / p.groups);
  const long y_count = p.batch * p.out_height * p.out_width * p.out_channels;
  const Buffer x = exact(x_count, random, true), w = exact(w_count, random, true),
               g = exact(y_count, random, true);
  const Buffer bias = exact(p.out_channels, random, true), residual = exact(y_count, random, true);
  const bool add = pick(random, 0, 1) == 1;
  std::vector<double> y(y_count), dx(x_count), dw(w_count);
  for (long i = 0; i < y_count; ++i) y[i] = bias[i % p.out_channels] + (add ? residual[i] : 0.0);
  each_product(p, [&](long i, long j, long k) {
    y[k] += static_cast<double>(x[i]) * w[j];
    dx[i] += static_cast<double>(g[k]) * w[j];
    dw[j] += static_cast<double>(g[k]) * x[i];
  });
  const int threads = static_cast<int>(pick(random, 1, 2));
  for (int i = 0; i < kernels.algorithm_count; ++i) {
    const bestof::Algorithm& a = *kernels.algorithms[i];
    const bestof::Pass* passes[] = {&a.forward, &a.backward_input, &a.backward_weight};
    const std::vector<double>* wanted[] = {&y, &dx, &dw};
    for (int direction = 0; direction < 3; ++direction) {
      const bestof::Pass& pass = *passes[direction];
      if (!applies(a, pass, p)) continue;
      const Buffer result = exact(static_cast<long>(wanted[direction]->size()), random, false);
      const Buffer scratch = exact(pass.scratch_floats(p, threads), random, false);
      bestof::Call call = {
          direction == 0 ? x.get() : g.get(),
          direction == 2 ? x.get() : w.get(),
          result.get(),
          {direction == 0 ? bias.get() : nullptr, direction == 0 && add ? residual.get() : nullptr,
           bestof::Activation::kNone, 0.0f},
          scratch.get(),
          threads};
      Buffer packed;
      if (pass.pack) {
        packed = exact(pass.packed_floats(p), random, false);
        pass.pack(p, w.get(), packed.get(), threads);
        call.second = packed.get();
      }
      pass.run(p, call);
      if (!close(result.get(), *wanted[direction], pass.error_growth + pass.rounding))
        return fail(kernels.isa, a.name, direction, p);
    }
  }
  return 0;
}

// The rows that take tensors of bfloat16, on them: forward, with a residual or without.
int try_bfloat16(const bestof::Kernels& kernels, Problem p, std::mt19937& random) {
  p.element = bestof::Element::kBfloat16;
  const long x_count = p.batch * p.in_height * p.in_width * p.in_channels;
  const long w_count =
      p.out_channels * p.kernel_height * p.kernel_width * (p.in_channels / p.groups);
  const long y_count = p.batch * p.out_height * p.out_width * p.out_channels;
  const Buffer16 x = exact16(x_count, random, true), w = exact16(w_count, random, true);
  const Buffer16 residual = exact16(y_count, random, true);
  const Buffer bias = exact(p.out_channels, random, true);
  const bool add = pick(random, 0, 1) == 1;
  std::vector<double> wanted(y_count), magnitude(y_count);
  for (long i = 0; i < y_count; ++i) {
    wanted[i] = bias[i % p.out_channels] + (add ? value_of(residual[i]) : 0.0);
    magnitude[i] = std::fabs(bias[i % p.out_channels]) + 1.0;
  }
  each_product(p, [&](long i, long j, long k) {
    wanted[k] += value_of(x[i]) * value_of(w[j]);
    magnitude[k] += std::fabs(value_of(x[i]) * value_of(w[j]));
  });
  const int threads = static_cast<int>(pick(random, 1, 2));
  for (int i = 0; i < kernels.algorithm_count; ++i) {
    const bestof::Algorithm& a = *kernels.algorithms[i];
    if (!applies(a, a.forward, p)) continue;
    const Buffer16 y = exact16(y_count, random, false);
    const Buffer scratch = exact(a.forward.scratch_floats(p, threads), random, false);
    const Buffer packed = exact(a.forward.packed_floats(p), random, false);
    a.forward.pack(p, reinterpret_cast<const float*>(w.get()), packed.get(), threads);
    a.forward.run(p, {reinterpret_cast<const float*>(x.get()),
                      packed.get(),
                      reinterpret_cast<float*>(y.get()),
                      {bias.get(), add ? reinterpret_cast<const float*>(residual.get()) : nullptr,
                       bestof::Activation::kNone, 0.0f},
                      scratch.get(),
                      threads});
    const double terms = 3.0 + 1.0 * p.kernel_height * p.kernel_width * p.in_channels / p.groups;
    for (long k = 0; k < y_count; ++k) {
      // One rounding to 8 bits, and float32 sums: 2^-24 a term.
      const double bound =
          std::ldexp(std::fabs(wanted[k]), -8) + std::ldexp(terms * magnitude[k], -24) * 1.01;
      if (!(std::fabs(value_of(y[k]) - wanted[k]) <= bound)) return fail(kernels.isa, a.name, 0, p);
    }
  }
  return 0;
}

// A linear layer of no rows, which the bindings hold off, finds nothing to do.
void try_no_rows(const bestof::Kernels& kernels) {
  Problem p = {};
  p.in_height = p.in_width = p.out_height = p.out_width = p.kernel_height = p.kernel_width =
      p.groups = 1;
  p.stride_y = p.stride_x = p.dilation_y = p.dilation_x = 1;
  p.in_channels = p.out_channels = 3;
  for (int i = 0; i < kernels.algorithm_count; ++i) {
    const bestof::Algorithm& a = *kernels.algorithms[i];
    if (std::strncmp(a.name, "matvec", 6) == 0)
      a.forward.run(p, {nullptr, nullptr, nullptr, {}, nullptr, 1});
  }
}

}  // namespace

int main(int count, char** arguments) {
  const double seconds = count > 1 ? std::atof(arguments[1]) : 10;
  const unsigned seed = count > 2 ? static_cast<unsigned>(std::atoi(arguments[2])) : 1;
  bestof::fuzz::poison_results = !(count > 3 && !std::strcmp(arguments[3], "unwritten"));
  std::mt19937 random(seed);
  const auto begin = std::chrono::steady_clock::now();
  long tried = 0;
  try_no_rows(*bestof::best_kernels());
  do {
    const Problem p = random_problem(random);
    // Half of them as if no cache could keep anything, where results are streamed past the caches.
    bestof::assume_level3(pick(random, 0, 1));
    if (try_problem(*bestof::best_kernels(), p, random) != 0) return 1;
    if (try_bfloat16(*bestof::best_kernels(), p, random) != 0) return 1;
    if (bestof::fuzz::try_company(*bestof::best_kernels(), random) != 0) return 1;
    ++tried;
  } while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() <
           seconds);
  std::printf("%ld problems on %s, seed %u\n", tried, bestof::best_kernels()->isa, seed);
  return 0;
}
