#include "fuzz/channels.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "fuzz/company.h"

namespace bestof {
namespace fuzz {
namespace {

// Where a channel of the result comes from.
struct Place {
  long source, width, channel;
};

// Channels [start, start + count) of the concatenated sources, shuffled in `groups`.
struct Gathering {
  std::vector<long> widths;
  long groups, start, count;

  long whole() const {
    long sum = 0;
    for (const long width : widths) sum += width;
    return sum;
  }

  Place place(long at) const {
    const long shuffled = start + at;
    long channel = shuffled % groups * (whole() / groups) + shuffled / groups, source = 0;
    for (; channel >= widths[source]; ++source) channel -= widths[source];
    return {source, widths[source], channel};
  }

  // One run for each stretch of channels that lie side by side, `groups` apart in the result.
  std::vector<ChannelRun> runs() const {
    std::vector<ChannelRun> found;
    for (long group = 0; group < std::min(groups, count); ++group) {
      for (long at = group; at < count; at += groups) {
        const Place from = place(at);
        ChannelRun* last = at > group ? &found.back() : nullptr;
        if (last && last->source == from.source && last->first + last->count == from.channel) {
          ++last->count;
        } else {
          found.push_back({from.source, from.width, from.channel, 1, at});
        }
      }
    }
    return found;
  }
};

Gathering random_gathering(std::mt19937& random) {
  Gathering made = {{}, pick(random, 0, 2) == 0 ? pick(random, 2, 3) : 1, 0, 0};
  const long sources = pick(random, 1, 6);
  for (long i = 0; i < sources; ++i) made.widths.push_back(pick(random, 1, 70));
  made.widths.back() += (made.groups - made.whole() % made.groups) % made.groups;
  made.start = pick(random, 0, 1) == 0 ? 0 : pick(random, 0, made.whole() - 1);
  made.count = pick(random, 1, made.whole() - made.start);
  return made;
}

double activated(double v, Activation activation) {
  if (activation == Activation::kNone) return v;
  return std::min(std::max(0.0, v), activation == Activation::kRelu6 ? 6.0 : HUGE_VAL);
}

template <class T, class Make>
int try_one(const Kernels& kernels, std::mt19937& random, Element element, const Make& make) {
  const Gathering made = random_gathering(random);
  const std::vector<ChannelRun> runs = made.runs();
  const long pixels = pick(random, 0, 7) == 0 ? pick(random, 300, 310) : pick(random, 1, 20);
  std::vector<decltype(make(0, true))> values;
  std::vector<const void*> sources;
  for (const long width : made.widths) {
    values.push_back(make(pixels * width, true));
    sources.push_back(values.back().get());
  }
  const Buffer scale = exact(made.count, random, true), shift = exact(made.count, random, true);
  const auto residual = make(pixels * made.count, true), y = make(pixels * made.count, false);
  const bool norms = made.groups == 1 && pick(random, 0, 1) == 1;
  const bool adds = norms && pick(random, 0, 1) == 1;
  ChannelProblem p = {
      pixels, made.count, made.groups, element, runs.data(), static_cast<long>(runs.size()), {}};
  constexpr Activation kTried[] = {Activation::kNone, Activation::kRelu, Activation::kRelu6};
  if (norms) p.norm = {scale.get(), shift.get(), kTried[pick(random, 0, 2)], 0.0f};
  kernels.gather_channels(p, sources.data(), adds ? residual.get() : nullptr, y.get(),
                          static_cast<int>(pick(random, 1, 3)));
  const double last = sizeof(T) < sizeof(float) ? std::ldexp(1.0, -8) : 0.0;
  for (long i = 0; i < pixels * made.count; ++i) {
    const long channel = i % made.count;
    const Place from = made.place(channel);
    const T* source = values[from.source].get();
    double wanted = value_of(source[i / made.count * from.width + from.channel]), bound = 0.0;
    if (norms) {
      // Each of three operations rounds by half a unit of what it has; then bfloat16 once more.
      const double product = wanted * scale[channel], added = adds ? value_of(residual[i]) : 0.0;
      const double sum = product + shift[channel] + added;
      const double size = 3 * std::fabs(product) + 2 * std::fabs(1.0 * shift[channel]);
      wanted = activated(sum, p.norm.activation);
      bound = std::ldexp(1.001 * (size + std::fabs(added)), -24);
      bound += last * (std::fabs(wanted) + bound) + 1e-40;
    }
    if (std::fabs(value_of(y[i]) - wanted) <= bound) continue;
    std::fprintf(stderr,
                 "%s: wrong %s of %ld pixels, %zu sources, channels %ld + %ld, %ld groups\n",
                 kernels.isa, norms ? "norm" : "channels", pixels, made.widths.size(), made.start,
                 made.count, made.groups);
    return 1;
  }
  return 0;
}

}  // namespace

int try_channels(const Kernels& kernels, std::mt19937& random) {
  const auto floats = [&](long count, bool fill) { return exact(count, random, fill); };
  const auto halves = [&](long count, bool fill) { return exact16(count, random, fill); };
  if (try_one<float>(kernels, random, Element::kFloat32, floats) != 0) return 1;
  return try_one<Bfloat16>(kernels, random, Element::kBfloat16, halves);
}

}  // namespace fuzz
}  // namespace bestof
