// Group norm in channels last, backward. Vectors hold neighbouring channels of one pixel.
//
// 1. Each part of an image sums gradient and gradient * (x - mean) of its pixels, channel by
//    channel: in float32 over at most kPixels pixels, and in double over the parts.
// 2. Each image makes of these sums three numbers a channel.
// 3. The gradient of x is gradient * factor + (x - mean) * slope + term, with these numbers.
#include "norm/group_norm.h"

#include "norm/partial_vector.h"
#include "simd/kernels.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// Pixels of one part. `group_norm_scratch` knows the number.
constexpr long kPixels = 128;

// Pixels that are added to the sums at once.
constexpr long kAtOnce = 2;

// Below it, starting threads takes longer than they save.
constexpr long kFewest = 1L << 14;

// What each channel of an image needs.
struct ImageNumbers {
  float *mean, *factor, *slope, *term, *products, *gradients;  // [channels]
};

struct Work {
  const GroupNormProblem& p;
  const GroupNormBackwardCall& call;
  long parts;

  explicit Work(const GroupNormProblem& problem, const GroupNormBackwardCall& given)
      : p(problem), call(given), parts(divide_up(problem.pixels, kPixels)) {}

  ImageNumbers numbers(long image) const {
    float* at = call.scratch + image * 6 * p.channels;
    const long c = p.channels;
    return {at, at + c, at + 2 * c, at + 3 * c, at + 4 * c, at + 5 * c};
  }
  float* sums(long image, long part) const {
    return call.scratch + (6 * p.images + 2 * (image * parts + part)) * p.channels;
  }
  long group_of(long c) const { return c / (p.channels / p.groups); }

  void spread_means(long image) const {
    float* mean = numbers(image).mean;
    for (long c = 0; c < p.channels; ++c) mean[c] = call.mean[image * p.groups + group_of(c)];
  }

  template <int kCount>
  BESTOF_INLINE void add_pixels(const float* gradient, const float* x, const float* mean,
                                float* sum) const {
    each_vector(p.channels, [&](long c, long n) BESTOF_FLAT {
      const Vec middle = load_n(mean + c, n);
      Vec gradients = load_n(sum + c, n), products = load_n(sum + p.channels + c, n);
#pragma GCC unroll 4
      for (int k = 0; k < kCount; ++k) {
        prefetch(gradient + k * p.channels + c);
        prefetch(x + k * p.channels + c);
        const Vec g = load_n(gradient + k * p.channels + c, n);
        gradients += g;
        products += g * (load_n(x + k * p.channels + c, n) - middle);
      }
      store_n(sum + c, gradients, n);
      store_n(sum + p.channels + c, products, n);
    });
  }

  void sum_part(long image, long part) const {
    float* sum = sums(image, part);
    const float* mean = numbers(image).mean;
    for (long c = 0; c < 2 * p.channels; ++c) sum[c] = 0.0f;
    const long end = smaller(p.pixels, (part + 1) * kPixels);
    long pixel = part * kPixels;
    for (; pixel < end;) {
      const long at = (image * p.pixels + pixel) * p.channels;
      if (pixel + kAtOnce <= end) {
        add_pixels<kAtOnce>(call.gradient + at, call.x + at, mean, sum);
        pixel += kAtOnce;
      } else {
        add_pixels<1>(call.gradient + at, call.x + at, mean, sum);
        ++pixel;
      }
    }
  }

  void join_parts(long image) const {
    const ImageNumbers of = numbers(image);
    const long width = p.channels / p.groups;
    const double count = static_cast<double>(width * p.pixels);
    for (long group = 0; group < p.groups; ++group) {
      const double rstd = call.rstd[image * p.groups + group];
      double gradients = 0.0, products = 0.0;
      for (long c = group * width; c < (group + 1) * width; ++c) {
        double gradient = 0.0, product = 0.0;
        for (long part = 0; part < parts; ++part) {
          gradient += sums(image, part)[c];
          product += sums(image, part)[p.channels + c];
        }
        of.gradients[c] = static_cast<float>(gradient);
        of.products[c] = static_cast<float>(product * rstd);
        const double scale = call.scale ? call.scale[c] : 1.0;
        of.factor[c] = static_cast<float>(scale * rstd);
        gradients += scale * gradient;
        products += scale * product;
      }
      for (long c = group * width; c < (group + 1) * width; ++c) {
        of.slope[c] = static_cast<float>(-products * rstd * rstd * rstd / count);
        of.term[c] = static_cast<float>(-gradients * rstd / count);
      }
    }
  }

  void write_part(long image, long part) const {
    const ImageNumbers of = numbers(image);
    const long end = smaller(p.pixels, (part + 1) * kPixels);
    for (long pixel = part * kPixels; pixel < end; ++pixel) {
      const long at = (image * p.pixels + pixel) * p.channels;
      each_vector(p.channels, [&](long c, long n) BESTOF_FLAT {
        prefetch(call.x + at + c);
        prefetch(call.gradient + at + c);
        prefetch_to_write(call.x_gradient + at + c);
        const Vec centred = load_n(call.x + at + c, n) - load_n(of.mean + c, n);
        const Vec v =
            load_n(call.gradient + at + c, n) * load_n(of.factor + c, n) + load_n(of.term + c, n);
        store_n(call.x_gradient + at + c, v + centred * load_n(of.slope + c, n), n);
      });
    }
  }

  void add_images(long c) const {
    double gradient = 0.0, product = 0.0;
    for (long image = 0; image < p.images; ++image) {
      gradient += numbers(image).gradients[c];
      product += numbers(image).products[c];
    }
    if (call.scale_gradient) call.scale_gradient[c] = static_cast<float>(product);
    if (call.shift_gradient) call.shift_gradient[c] = static_cast<float>(gradient);
  }
};

}  // namespace

void group_norm_backward(const GroupNormProblem& p, const GroupNormBackwardCall& call) {
  const Work work(p, call);
  const long all = p.images * work.parts;
#pragma omp parallel num_threads(call.threads) if (p.images * p.pixels * p.channels >= kFewest)
  {
#pragma omp for schedule(static)
    for (long image = 0; image < p.images; ++image) work.spread_means(image);
#pragma omp for schedule(static)
    for (long part = 0; part < all; ++part) work.sum_part(part / work.parts, part % work.parts);
#pragma omp for schedule(static)
    for (long image = 0; image < p.images; ++image) work.join_parts(image);
    if (call.x_gradient) {
#pragma omp for schedule(static) nowait
      for (long part = 0; part < all; ++part) work.write_part(part / work.parts, part % work.parts);
    }
  }
  for (long c = 0; c < p.channels; ++c) work.add_images(c);
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
