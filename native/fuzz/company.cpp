#include "fuzz/company.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

namespace bestof {
namespace fuzz {

bool poison_results = true;

Buffer exact(long count, std::mt19937& random, bool fill) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 64, count > 0 ? count * sizeof(float) : 1) != 0) std::abort();
  Buffer buffer(static_cast<float*>(memory));
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  if (fill || poison_results) {
    for (long i = 0; i < count; ++i) buffer[i] = fill ? uniform(random) : NAN;
  }
  return buffer;
}

Buffer16 exact16(long count, std::mt19937& random, bool fill) {
  Buffer16 buffer(static_cast<Bfloat16*>(std::malloc(count > 0 ? count * sizeof(Bfloat16) : 1)));
  if (!buffer) std::abort();
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  if (fill || poison_results) {
    for (long i = 0; i < count; ++i) {
      const float value = fill ? uniform(random) : NAN;
      std::uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      buffer[i].bits = static_cast<unsigned short>(bits >> 16);
    }
  }
  return buffer;
}

double value_of(Bfloat16 v) {
  const std::uint32_t bits = static_cast<std::uint32_t>(v.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

long pick(std::mt19937& random, long low, long high) {
  return std::uniform_int_distribution<long>(low, high)(random);
}

namespace {

bool close(const float* got, const std::vector<double>& wanted, double error) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!(std::fabs(got[i] - wanted[i]) <= error * (1.0 + std::fabs(wanted[i])))) return false;
  }
  return true;
}

int fail(const Kernels& kernels, const char* what) {
  std::fprintf(stderr, "%s %s: wrong result\n", kernels.isa, what);
  return 1;
}

PoolProblem random_pool(std::mt19937& random) {
  PoolProblem p;
  for (;;) {
    p.batch = pick(random, 1, 2);
    p.in_height = pick(random, 1, 9);
    p.in_width = pick(random, 1, 9);
    p.channels = pick(random, 1, 40);
    p.kernel_height = pick(random, 1, 4);
    p.kernel_width = pick(random, 1, 4);
    p.stride_y = pick(random, 1, 3);
    p.stride_x = pick(random, 1, 3);
    p.pad_top = pick(random, 0, p.kernel_height / 2);
    p.pad_left = pick(random, 0, p.kernel_width / 2);
    p.maximum = pick(random, 0, 1) == 1;
    p.count_padding = pick(random, 0, 1) == 1;
    const long y = p.in_height + 2 * p.pad_top - p.kernel_height,
               x = p.in_width + 2 * p.pad_left - p.kernel_width;
    if (y < 0 || x < 0) continue;
    p.out_height = y / p.stride_y + 1;
    p.out_width = x / p.stride_x + 1;
    return p;
  }
}

// One window of one channel: y, and what it gives back to x.
double pool_window(const PoolProblem& p, const float* x, long n, long oy, long ox, long c,
                   double grad, std::vector<double>& dx) {
  std::vector<long> places;
  for (long r = 0; r < p.kernel_height; ++r) {
    for (long s = 0; s < p.kernel_width; ++s) {
      const long iy = oy * p.stride_y - p.pad_top + r, ix = ox * p.stride_x - p.pad_left + s;
      if (iy < 0 || iy >= p.in_height || ix < 0 || ix >= p.in_width) continue;
      places.push_back(((n * p.in_height + iy) * p.in_width + ix) * p.channels + c);
    }
  }
  if (p.maximum) {
    long best = places.front();
    for (long place : places) best = x[place] > x[best] ? place : best;
    dx[best] += grad;
    return x[best];
  }
  const double divisor = p.count_padding ? static_cast<double>(p.kernel_height * p.kernel_width)
                                         : static_cast<double>(places.size());
  double sum = 0.0;
  for (long place : places) {
    sum += x[place];
    dx[place] += grad / divisor;
  }
  return sum / divisor;
}

int try_pool(const Kernels& kernels, std::mt19937& random, int threads) {
  const PoolProblem p = random_pool(random);
  const long x_count = p.batch * p.in_height * p.in_width * p.channels;
  const long y_count = p.batch * p.out_height * p.out_width * p.channels;
  const Buffer x = exact(x_count, random, true), grad = exact(y_count, random, true);
  const Buffer y = exact(y_count, random, false), dx = exact(x_count, random, false);
  std::vector<double> wanted_y(y_count), wanted_dx(x_count);
  for (long i = 0; i < y_count; ++i) {
    const long pixel = i / p.channels, row = pixel / p.out_width;
    wanted_y[i] = pool_window(p, x.get(), row / p.out_height, row % p.out_height,
                              pixel % p.out_width, i % p.channels, grad[i], wanted_dx);
  }
  kernels.pool_forward(p, x.get(), y.get(), threads);
  kernels.pool_backward(p, grad.get(), x.get(), dx.get(), threads);
  return close(y.get(), wanted_y, 1e-5) && close(dx.get(), wanted_dx, 1e-5)
             ? 0
             : fail(kernels, "pooling");
}

// Orders of axes of which no two stay neighbours, as the kernel asks.
int try_transposition(const Kernels& kernels, std::mt19937& random, int threads) {
  const std::vector<std::vector<int>> orders = {
      {1, 0}, {0, 2, 1}, {2, 1, 0}, {1, 3, 0, 2}, {3, 2, 1, 0}};
  const std::vector<int>& order = orders[pick(random, 0, static_cast<long>(orders.size()) - 1)];
  const int rank = static_cast<int>(order.size());
  std::vector<long> shape(rank), read(rank, 1);
  for (int i = 0; i < rank; ++i) shape[i] = pick(random, 1, rank > 2 ? 20 : 150);
  for (int i = rank - 2; i >= 0; --i) read[i] = read[i + 1] * shape[i + 1];
  JoinedAxes axes = {};
  axes.count = rank;
  long total = 1;
  for (int i = rank - 1; i >= 0; --i) {
    axes.extent[i] = shape[order[i]];
    axes.read[i] = read[order[i]];
    axes.write[i] = total;
    total *= axes.extent[i];
  }
  const Buffer x = exact(total, random, true), y = exact(total, random, false);
  kernels.transpose_blocked(x.get(), axes, y.get(), threads);
  for (long i = 0; i < total; ++i) {
    long from = 0;
    for (int axis = 0; axis < rank; ++axis)
      from += i / axes.write[axis] % axes.extent[axis] * axes.read[axis];
    if (!(y[i] == x[from])) return fail(kernels, "transposition");
  }
  return 0;
}

int try_focal_loss(const Kernels& kernels, std::mt19937& random, int threads) {
  const float gammas[] = {0.0f, 1.0f, 2.0f, 1.5f};
  const FocalProblem p = {pick(random, 0, 1000), pick(random, 0, 1) ? 0.25f : -1.0f,
                          gammas[pick(random, 0, 3)], 0.5f};
  const bool soft = pick(random, 0, 1) == 1;
  const Buffer x = exact(p.count, random, true), y = exact(p.count, random, true);
  const Buffer loss = exact(p.count, random, false), gradient = exact(p.count, random, false);
  std::vector<double> sums(focal_parts(p.count)), wanted(p.count), slope(p.count);
  for (long i = 0; i < p.count; ++i) {
    x[i] *= 20.0f;
    y[i] = soft ? std::fabs(y[i]) : y[i] > 0.8f ? 1.0f : 0.0f;
    const double t = y[i], z = x[i], up = std::fmax(z, 0.0) + std::log1p(std::exp(-std::fabs(z))),
                 down = up - z;
    const double one = std::exp(-down), zero = std::exp(-up), om = one * (1 - t) + zero * t;
    const double ce = (1 - t) * up + t * down;
    const double weight = p.scale * (p.alpha < 0 ? 1.0 : p.alpha * t + (1.0 - p.alpha) * (1 - t));
    wanted[i] = weight * std::pow(om, p.gamma) * ce;
    slope[i] = weight * (p.gamma * std::pow(om, p.gamma - 1) * (1 - 2 * t) * one * zero * ce +
                         std::pow(om, p.gamma) * (one * (1 - t) - zero * t));
  }
  kernels.focal_loss(p, x.get(), y.get(), loss.get(), gradient.get(), sums.data(), threads);
  return close(loss.get(), wanted, 1e-5) && close(gradient.get(), slope, 1e-5)
             ? 0
             : fail(kernels, "focal loss");
}

}  // namespace

int try_company(const Kernels& kernels, std::mt19937& random) {
  const int threads = static_cast<int>(pick(random, 1, 2));
  if (try_pool(kernels, random, threads) != 0) return 1;
  if (try_transposition(kernels, random, threads) != 0) return 1;
  return try_focal_loss(kernels, random, threads);
}

}  // namespace fuzz
}  // namespace bestof
