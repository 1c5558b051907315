// Runs random problems through every row of the table, in buffers of exactly the promised size.
// AddressSanitizer and UndefinedBehaviorSanitizer, with which it is built, end it if a single
// element is out of place. Results are compared with a naive sum in double. The problems are drawn
// from the domains of the rows in turn, and the program fails if a pass of a row was never run.
//
// Usage: fuzz SECONDS SEED [unwritten]. With `unwritten`, results and scratch stay as they were
// allocated, which valgrind follows, instead of full of NaN.
#include <omp.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "fuzz/attention.h"
#include "fuzz/channels.h"
#include "fuzz/company.h"
#include "fuzz/inverted_residual.h"
#include "fuzz/norm.h"
#include "fuzz/product.h"
#include "fuzz/rotary.h"
#include "fuzz/training.h"
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

// The extents of the result; false where the kernel exceeds the padded image.
bool fit_result(Problem& p) {
  const long y = p.in_height + p.pad_top + p.pad_bottom - p.dilation_y * (p.kernel_height - 1) - 1;
  const long x = p.in_width + p.pad_left + p.pad_right - p.dilation_x * (p.kernel_width - 1) - 1;
  p.out_height = y / p.stride_y + 1;
  p.out_width = x / p.stride_x + 1;
  return y >= 0 && x >= 0;
}

// A linear layer of few rows.
Problem few_rows(std::mt19937& random) {
  Problem p = {};
  p.batch = pick(random, 1, 2);
  p.in_height = p.out_height = p.groups = p.kernel_height = p.kernel_width = 1;
  p.stride_y = p.stride_x = p.dilation_y = p.dilation_x = 1;
  p.out_width = p.in_width = pick(random, 1, bestof::kMostRows / 2);
  p.in_channels = pick(random, 1, 300);
  p.out_channels = pick(random, 1, 40);
  return p;
}

// A problem of one kernel size and stride; one in four has tiles enough for blocks of them, whose
// results may be streamed where they are whole vectors.
Problem of_kernel(const bestof::Domain& domain, std::mt19937& random) {
  Problem p = {};
  p.kernel_height = domain.kernel_height;
  p.kernel_width = domain.kernel_width;
  p.stride_y = p.stride_x = domain.stride;
  p.dilation_y = p.dilation_x = p.groups = 1;
  const bool blocks = pick(random, 0, 3) == 0;
  p.batch = blocks ? pick(random, 2, 5) : pick(random, 1, 3);
  p.in_height = blocks ? pick(random, 24, 32) : pick(random, 1, 15);
  p.in_width = blocks ? pick(random, 24, 32) : pick(random, 1, 15);
  p.in_channels = blocks ? pick(random, 1, 6) : pick(random, 1, 40);
  p.out_channels = blocks ? 16 * pick(random, 1, 2) : pick(random, 1, 40);
  if (domain.shapes == bestof::Shapes::kGroupedKernel) {
    p.groups = pick(random, 2, 5);
    p.in_channels *= p.groups;
    p.out_channels = pick(random, 0, 1) ? p.in_channels : p.out_channels * p.groups;
  }
  return p;
}

Problem of_any_kernel(bool depthwise, std::mt19937& random) {
  Problem p = {};
  p.batch = pick(random, 1, 3);
  p.in_height = pick(random, 1, 15);
  p.in_width = pick(random, 1, 15);
  p.groups = depthwise ? pick(random, 1, 40) : pick(random, 1, 4);
  p.in_channels = p.groups * (depthwise ? 1 : pick(random, 1, 40));
  p.out_channels = p.groups * (depthwise ? 1 : pick(random, 1, 40));
  p.kernel_height = pick(random, 1, 5);
  p.kernel_width = pick(random, 1, 5);
  p.stride_y = pick(random, 1, 3);
  p.stride_x = pick(random, 1, 3);
  p.dilation_y = pick(random, 1, 2);
  p.dilation_x = pick(random, 1, 2);
  return p;
}

// A problem from the domain of an algorithm.
Problem random_problem(const bestof::Domain& domain, std::mt19937& random) {
  if (domain.shapes == bestof::Shapes::kFewRows) return few_rows(random);
  for (;;) {
    Problem p = domain.kernel_height > 0
                    ? of_kernel(domain, random)
                    : of_any_kernel(domain.shapes == bestof::Shapes::kDepthwise, random);
    p.pad_top = pick(random, 0, 4);
    p.pad_bottom = pick(random, 0, 4);
    p.pad_left = pick(random, 0, 4);
    p.pad_right = pick(random, 0, 4);
    if (fit_result(p)) return p;
  }
}

// How many problems each pass of each row computed.
std::vector<std::array<long, 3>> computed;
std::vector<long> multiplied;  // the same of each row of the matrix products

// The first pass that was never computed, as text; empty where there is none.
std::string missed(const bestof::Kernels& kernels) {
  const char* directions[] = {"forward", "input gradient", "weight gradient"};
  for (int i = 0; i < kernels.algorithm_count; ++i) {
    const bestof::Passes& passes = *kernels.algorithms[i].passes;
    const bestof::Pass* each[] = {&passes.forward, &passes.backward_input, &passes.backward_weight};
    for (int direction = 0; direction < 3; ++direction) {
      if (each[direction]->run && computed[i][direction] == 0)
        return std::string(kernels.algorithms[i].name) + ", " + directions[direction];
    }
  }
  for (int i = 0; i < kernels.product_count; ++i) {
    if (multiplied[i] == 0) return std::string(kernels.products[i].name) + ", product";
  }
  return "";
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
                const long channel = k / outputs * inputs + c;
                f(p.planes ? ((n * p.in_channels + channel) * p.in_height + iy) * p.in_width + ix
                           : ((n * p.in_height + iy) * p.in_width + ix) * p.in_channels + channel,
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

// What errors of whole results are relative to.
double scale_of(const std::vector<double>& wanted) {
  double square = 0;
  for (double v : wanted) square += v * v;
  return std::sqrt(square / static_cast<double>(wanted.size())) + 1e-3;
}

bool close(const float* got, const std::vector<double>& wanted, double error) {
  const double scale = scale_of(wanted);
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

// Moves the results of `pixels` pixels, `pitch` floats apart, side by side.
void close_ranks(float* y, long pixels, long channels, long pitch) {
  for (long i = 0; i < pixels; ++i)
    std::memmove(y + i * channels, y + i * pitch, channels * sizeof(float));
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
    const bestof::Algorithm& a = kernels.algorithms[i];
    const bestof::Pass* passes[] = {&a.passes->forward, &a.passes->backward_input,
                                    &a.passes->backward_weight};
    const std::vector<double>* wanted[] = {&y, &dx, &dw};
    for (int direction = 0; direction < 3; ++direction) {
      const bestof::Pass& pass = *passes[direction];
      if (!applies(a, pass, p)) continue;
      // Some results are a part of the channels of wider pixels; the last of these ends with it.
      const bool is_part = direction == 0 && a.pitches && !add && pick(random, 0, 1) == 1;
      const long pixels = y_count / p.out_channels;
      const long pitch = is_part ? p.out_channels + pick(random, 0, 20) : 0;
      const long size = is_part ? (pixels - 1) * pitch + p.out_channels
                                : static_cast<long>(wanted[direction]->size());
      const Buffer result = exact(size, random, false);
      const Buffer scratch = exact(pass.scratch_floats(p, threads), random, false);
      bestof::Call call = {
          direction == 0 ? x.get() : g.get(),
          direction == 2 ? x.get() : w.get(),
          result.get(),
          {direction == 0 ? bias.get() : nullptr, direction == 0 && add ? residual.get() : nullptr,
           bestof::Activation::kNone, 0.0f, false, pitch},
          scratch.get(),
          threads};
      Buffer packed;
      if (pass.pack) {
        packed = exact(pass.packed_floats(p), random, false);
        pass.pack(p, w.get(), packed.get(), threads);
        call.second = packed.get();
      }
      pass.run(p, call);
      ++computed[i][direction];
      if (is_part) close_ranks(result.get(), pixels, p.out_channels, pitch);
      if (!close(result.get(), *wanted[direction], a.error.rms + a.rounding.rms))
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
    const bestof::Algorithm& a = kernels.algorithms[i];
    const bestof::Pass& pass = a.passes->forward;
    if (!applies(a, pass, p)) continue;
    const Buffer16 y = exact16(y_count, random, false);
    const Buffer scratch = exact(pass.scratch_floats(p, threads), random, false);
    const Buffer packed = exact(pass.packed_floats(p), random, false);
    pass.pack(p, w.get(), packed.get(), threads);
    pass.run(p, {x.get(),
                 packed.get(),
                 y.get(),
                 {bias.get(), add ? residual.get() : nullptr, bestof::Activation::kNone, 0.0f},
                 scratch.get(),
                 threads});
    const double terms = 3.0 + 1.0 * p.kernel_height * p.kernel_width * p.in_channels / p.groups;
    const double transforms = a.transforms ? 40 * a.error.rms * scale_of(wanted) : 0.0;
    for (long k = 0; k < y_count; ++k) {
      // One rounding to 8 bits, and float32 sums: 2^-24 a term.
      const double sums = std::ldexp(terms * magnitude[k], -24) * 1.01 + transforms;
      const double bound = std::ldexp(std::fabs(wanted[k]), -8) + sums;
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
    const bestof::Algorithm& a = kernels.algorithms[i];
    if (a.domain.shapes == bestof::Shapes::kFewRows)
      a.passes->forward.run(p, {nullptr, nullptr, nullptr, {}, nullptr, 1});
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
  const bestof::Kernels& kernels = *bestof::best_kernels();
  computed.resize(kernels.algorithm_count);
  try_no_rows(kernels);
  const auto over = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() >=
           seconds;
  };
  // Rows take turns, and each has had several by the end, however slow the processor is.
  const long least = 4L * kernels.algorithm_count;
  do {
    const bestof::Algorithm& row = kernels.algorithms[tried % kernels.algorithm_count];
    Problem p = random_problem(row.domain, random);
    p.planes = row.planes && pick(random, 0, 1) == 1;
    // Half of them as if no cache could keep anything, where results are streamed past the caches.
    bestof::assume_level3(pick(random, 0, 1));
    if (try_problem(kernels, p, random) != 0) return 1;
    if (try_bfloat16(kernels, p, random) != 0) return 1;
    if (bestof::fuzz::try_product(kernels, random, multiplied) != 0) return 1;
    if (bestof::fuzz::try_company(kernels, random) != 0) return 1;
    if (bestof::fuzz::try_channels(kernels, random) != 0) return 1;
    if (bestof::fuzz::try_inverted_residuals(kernels, random) != 0) return 1;
    if (bestof::fuzz::try_norms(kernels, random) != 0) return 1;
    if (bestof::fuzz::try_rotary(kernels, random) != 0) return 1;
    if (bestof::fuzz::try_training(kernels, random) != 0) return 1;
    // Its naive sums take longest.
    if (tried % 4 == 0 && bestof::fuzz::try_attention(kernels, random) != 0) return 1;
    ++tried;
  } while (tried < least || !over());
  if (const std::string pass = missed(kernels); !pass.empty()) {
    std::fprintf(stderr, "no problem was tried on %s: its domain was never drawn\n", pass.c_str());
    return 1;
  }
  std::printf("%ld problems on %s, seed %u\n", tried, kernels.isa, seed);
  return 0;
}
