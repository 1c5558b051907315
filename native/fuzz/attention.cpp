#include "fuzz/attention.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "fuzz/company.h"

namespace bestof {
namespace fuzz {
namespace {

// The bounds below are those of tests/numerics/test_attention.py and test_attention_backward.py,
// for scores of a magnitude below kMagnitude: operands lie in [-1, 1], sizes are at most
// kLargestSize, the scale is at most 0.5, and masks add at most 1.
constexpr long kLargestSize = 40;
constexpr double kMagnitude = 0.5 * kLargestSize + 1.0;
constexpr double kExponential = 3e-7;

double unit(double terms) {
  return std::ldexp(terms, -24);
}

HeadStrides random_strides(long heads, long tokens, long size, bool beside, std::mt19937& random) {
  const long gap = pick(random, 0, 3);
  if (beside) return {tokens * (heads * size + gap), size, heads * size + gap};
  return {heads * tokens * (size + gap), tokens * (size + gap), size + gap};
}

long extent(const HeadStrides& s, long batch, long heads, long tokens, long size) {
  return 1 + (batch - 1) * s.batch + (heads - 1) * s.head + (tokens - 1) * s.token + size - 1;
}

long place(const HeadStrides& s, long b, long h, long i) {
  return b * s.batch + h * s.head + i * s.token;
}

AttentionBackward random_attention(std::mt19937& random) {
  AttentionBackward p = {};
  Attention& of = p.of;
  of.batch = pick(random, 1, 2);
  of.shared_heads = pick(random, 1, 2);
  of.heads = of.shared_heads * pick(random, 1, 2);
  const long most[] = {kFewQueries, 40, 40, 150};
  of.queries = pick(random, 1, most[pick(random, 0, 3)]);
  of.keys = pick(random, 1, pick(random, 0, 3) == 0 ? 300 : 40);
  of.size = pick(random, 1, kLargestSize);
  of.causal = pick(random, 0, 1) == 1;
  of.scale = 0.125f * static_cast<float>(pick(random, 1, 4));
  const auto strides = [&](long heads, long tokens) {
    return random_strides(heads, tokens, of.size, pick(random, 0, 1) == 1, random);
  };
  of.q = strides(of.heads, of.queries);
  of.k = strides(of.shared_heads, of.keys);
  of.v = strides(of.shared_heads, of.keys);
  of.out = strides(of.heads, of.queries);
  of.logsumexp = {of.queries * of.heads, 1, of.heads};
  p.gradient = strides(of.heads, of.queries);
  p.dq = strides(of.heads, of.queries);
  p.dk = strides(of.shared_heads, of.keys);
  p.dv = strides(of.shared_heads, of.keys);
  // A mask of all scores, of the keys alone, of the queries alone, or of one number.
  of.mask.key = pick(random, 0, 2) == 0 ? 0 : 1;
  of.mask.query = pick(random, 0, 1) * of.keys;
  return p;
}

struct Memory {
  Buffer q, k, v, gradient, out, logsumexp, mask, dq, dk, dv;
};

// The results of one query in double, and the sums of the magnitudes of their terms.
struct Wanted {
  std::vector<double> out, dq, dk, dv;
  std::vector<double> out_size, dq_size, dk_size, dv_size;
  std::vector<double> logsumexp;
};

double dot(const float* a, const float* b, long count, bool magnitudes) {
  double sum = 0.0;
  for (long i = 0; i < count; ++i)
    sum += magnitudes ? std::fabs(1.0 * a[i] * b[i]) : 1.0 * a[i] * b[i];
  return sum;
}

// Adds factor * row to the sums of a token.
void add(std::vector<double>& sums, std::vector<double>& sizes, long token, const Attention& p,
         double factor, double size, const float* row) {
  for (long d = 0; d < p.size; ++d) {
    sums[token * p.size + d] += factor * row[d];
    sizes[token * p.size + d] += size * std::fabs(row[d]);
  }
}

void attend_query(const AttentionBackward& p, const Memory& m, bool masks, long b, long h, long i,
                  Wanted& wanted) {
  const Attention& of = p.of;
  const long shared = h / (of.heads / of.shared_heads);
  const long query = (b * of.heads + h) * of.queries + i;
  const float* q = m.q.get() + place(of.q, b, h, i);
  const float* g = m.gradient.get() + place(p.gradient, b, h, i);
  const long seen = of.causal && i + 1 < of.keys ? i + 1 : of.keys;
  std::vector<double> weights(seen);
  double total = 0.0;
  for (long j = 0; j < seen; ++j) {
    double score = of.scale * dot(q, m.k.get() + place(of.k, b, shared, j), of.size, false);
    if (masks) score += m.mask[i * of.mask.query + j * of.mask.key];
    total += weights[j] = std::exp(score);
  }
  wanted.logsumexp[query] = std::log(total);
  double kept = 0.0, kept_size = 0.0;  // sum of gradient * result
  for (long j = 0; j < seen; ++j) {
    const float* v = m.v.get() + place(of.v, b, shared, j);
    weights[j] /= total;
    add(wanted.out, wanted.out_size, query, of, weights[j], weights[j], v);
    kept += weights[j] * dot(g, v, of.size, false);
  }
  for (long d = 0; d < of.size; ++d)
    kept_size += std::fabs(g[d] * wanted.out_size[query * of.size + d]);
  for (long j = 0; j < seen; ++j) {
    const float *k = m.k.get() + place(of.k, b, shared, j),
                *v = m.v.get() + place(of.v, b, shared, j);
    const long key = (b * of.shared_heads + shared) * of.keys + j;
    const double slope = of.scale * weights[j] * (dot(g, v, of.size, false) - kept);
    const double size = of.scale * weights[j] * (dot(g, v, of.size, true) + kept_size);
    add(wanted.dq, wanted.dq_size, query, of, slope, size, k);
    add(wanted.dk, wanted.dk_size, key, of, slope, size, q);
    add(wanted.dv, wanted.dv_size, key, of, weights[j], weights[j], g);
  }
}

bool close(const float* got, const HeadStrides& s, long heads, long tokens, long size,
           const std::vector<double>& wanted, const std::vector<double>& sizes, double error) {
  for (std::size_t at = 0; at < wanted.size(); ++at) {
    const long token = static_cast<long>(at) / size, head = token / tokens;
    const float value = got[place(s, head / heads, head % heads, token % tokens) + at % size];
    if (!(std::fabs(value - wanted[at]) <= error * sizes[at] + 1e-30)) return false;
  }
  return true;
}

int fail(const Kernels& kernels, const char* what, const Attention& p) {
  std::fprintf(stderr,
               "%s: wrong %s of %ld x %ld/%ld heads, %ld queries, %ld keys, %ld numbers%s%s\n",
               kernels.isa, what, p.batch, p.heads, p.shared_heads, p.queries, p.keys, p.size,
               p.causal ? ", causal" : "", p.element == Element::kBfloat16 ? ", bfloat16" : "");
  return 1;
}

Memory fill(const AttentionBackward& p, std::mt19937& random) {
  const Attention& of = p.of;
  const auto queries = [&](const HeadStrides& s, bool full) {
    return exact(extent(s, of.batch, of.heads, of.queries, of.size), random, full);
  };
  const auto keys = [&](const HeadStrides& s, bool full) {
    return exact(extent(s, of.batch, of.shared_heads, of.keys, of.size), random, full);
  };
  const long masked = 1 + (of.queries - 1) * of.mask.query + (of.keys - 1) * of.mask.key;
  return {queries(of.q, true),
          keys(of.k, true),
          keys(of.v, true),
          queries(p.gradient, true),
          queries(of.out, false),
          exact(of.batch * of.heads * of.queries, random, false),
          exact(masked, random, true),
          queries(p.dq, false),
          keys(p.dk, false),
          keys(p.dv, false)};
}

Wanted naive(const AttentionBackward& p, const Memory& m, bool masks) {
  const Attention& of = p.of;
  const long queries = of.batch * of.heads * of.queries,
             keys = of.batch * of.shared_heads * of.keys;
  const std::vector<double> of_queries(queries * of.size), of_keys(keys * of.size);
  Wanted wanted = {of_queries, of_queries, of_keys,
                   of_keys,    of_queries, of_queries,
                   of_keys,    of_keys,    std::vector<double>(queries)};
  for (long b = 0; b < of.batch; ++b) {
    for (long h = 0; h < of.heads; ++h) {
      for (long i = 0; i < of.queries; ++i) attend_query(p, m, masks, b, h, i, wanted);
    }
  }
  return wanted;
}

// What results err by, relative to the sums of the magnitudes of their terms. A score, the maximum
// and the distance from it err by kMagnitude each; an exponential errs once for the weight and once
// for each block of keys. The logsumexp, from which weights are computed again, errs like the sum
// of the weights.
struct Errors {
  double out, again, slope;
  double last = 0.0;    // of rounding a result
  double factor = 0.0;  // of rounding a weight or a slope before it is multiplied
};

Errors errors_of(const Attention& of) {
  const double score = unit((of.size + 4) * kMagnitude);
  const double weight =
      std::expm1(2 * score + unit(4 * kMagnitude) + (2.0 + of.keys / 256) * kExponential);
  Errors errors;
  errors.out = 2 * weight + 2 * unit(of.keys + 8.0);
  errors.again = std::expm1(2 * weight + score + unit(of.keys + 4 * kMagnitude + 8));
  errors.slope = errors.again + errors.out + unit(2.0 * of.size + 14);
  return errors;
}

int compare(const Kernels& kernels, const AttentionBackward& p, const Memory& m,
            const Wanted& wanted, const Errors& errors) {
  const Attention& of = p.of;
  const double terms = static_cast<double>(of.heads) / of.shared_heads * of.queries + 8;
  for (long at = 0; at < of.batch * of.heads * of.queries; ++at) {
    const long head = at / of.queries;
    const double got =
        m.logsumexp[place(of.logsumexp, head / of.heads, head % of.heads, at % of.queries)];
    if (!(std::fabs(got - wanted.logsumexp[at]) <= errors.again))
      return fail(kernels, "logsumexp", of);
  }
  const auto rounded = [&](double error) { return error * (1 + errors.last) + errors.last; };
  const auto factor = [&](double error) { return error * (1 + errors.factor) + errors.factor; };
  if (!close(m.out.get(), of.out, of.heads, of.queries, of.size, wanted.out, wanted.out_size,
             rounded(errors.out)))
    return fail(kernels, "attention", of);
  if (!close(m.dq.get(), p.dq, of.heads, of.queries, of.size, wanted.dq, wanted.dq_size,
             rounded(factor(errors.slope) + unit(of.keys + 8.0))))
    return fail(kernels, "gradient of the queries", of);
  if (!close(m.dk.get(), p.dk, of.shared_heads, of.keys, of.size, wanted.dk, wanted.dk_size,
             rounded(factor(errors.slope) + unit(terms))))
    return fail(kernels, "gradient of the keys", of);
  if (!close(m.dv.get(), p.dv, of.shared_heads, of.keys, of.size, wanted.dv, wanted.dv_size,
             rounded(factor(errors.again) + unit(terms))))
    return fail(kernels, "gradient of the values", of);
  return 0;
}

int try_both_passes(const Kernels& kernels, std::mt19937& random, int threads) {
  const AttentionBackward p = random_attention(random);
  const Attention& of = p.of;
  const bool masks = pick(random, 0, 1) == 1;
  const Memory m = fill(p, random);
  const float* mask = masks ? m.mask.get() : nullptr;
  const Buffer scratch = exact(kernels.attention->scratch_floats(of, threads), random, false);
  kernels.attention->run(of, {m.q.get(), m.k.get(), m.v.get(), mask, m.out.get(), m.logsumexp.get(),
                              scratch.get(), threads});
  const Buffer more = exact(kernels.attention_backward->scratch_floats(p, threads), random, false);
  kernels.attention_backward->run(
      p, {m.gradient.get(), m.q.get(), m.k.get(), m.v.get(), m.out.get(), m.logsumexp.get(), mask,
          m.dq.get(), m.dk.get(), m.dv.get(), more.get(), threads});
  return compare(kernels, p, m, naive(p, m, masks), errors_of(of));
}

// Cuts numbers to those of bfloat16, and returns these.
Buffer16 halve(const Buffer& numbers, long count, std::mt19937& random) {
  Buffer16 halves = exact16(count, random, false);
  for (long i = 0; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, &numbers[i], sizeof(bits));
    halves[i].bits = static_cast<unsigned short>(bits >> 16);
    numbers[i] = static_cast<float>(value_of(halves[i]));
  }
  return halves;
}

// Both passes of bfloat16. The forward pass may round each weight. The backward pass reads results
// that are rounded. By tile registers, it rounds each weight and slope too.
int try_bfloat16(const Kernels& kernels, std::mt19937& random, int threads) {
  AttentionBackward p = random_attention(random);
  Attention& of = p.of;
  of.element = Element::kBfloat16;
  const bool masks = pick(random, 0, 1) == 1, half_mask = pick(random, 0, 1) == 1;
  of.mask_element = half_mask ? Element::kBfloat16 : Element::kFloat32;
  const Memory m = fill(p, random);
  const auto of_queries = [&](const HeadStrides& s) {
    return extent(s, of.batch, of.heads, of.queries, of.size);
  };
  const auto of_keys = [&](const HeadStrides& s) {
    return extent(s, of.batch, of.shared_heads, of.keys, of.size);
  };
  const long masked = 1 + (of.queries - 1) * of.mask.query + (of.keys - 1) * of.mask.key;
  const Buffer16 q = halve(m.q, of_queries(of.q), random), k = halve(m.k, of_keys(of.k), random),
                 v = halve(m.v, of_keys(of.v), random),
                 gradient = halve(m.gradient, of_queries(p.gradient), random),
                 mask = halve(m.mask, half_mask ? masked : 0, random),
                 out = exact16(of_queries(of.out), random, false),
                 dq = exact16(of_queries(p.dq), random, false),
                 dk = exact16(of_keys(p.dk), random, false),
                 dv = exact16(of_keys(p.dv), random, false);
  const void* added = half_mask ? static_cast<const void*>(mask.get()) : m.mask.get();
  if (!masks) added = nullptr;
  const Buffer scratch = exact(kernels.attention_bf16->scratch_floats(of, threads), random, false);
  kernels.attention_bf16->run(
      of, {q.get(), k.get(), v.get(), added, out.get(), m.logsumexp.get(), scratch.get(), threads});
  const Buffer more = exact(kernels.attention_backward->scratch_floats(p, threads), random, false);
  kernels.attention_backward->run(
      p, {gradient.get(), q.get(), k.get(), v.get(), out.get(), m.logsumexp.get(), added, dq.get(),
          dk.get(), dv.get(), more.get(), threads});
  const auto widen = [](const Buffer16& from, long count, const Buffer& to) {
    for (long i = 0; i < count; ++i) to[i] = static_cast<float>(value_of(from[i]));
  };
  widen(out, of_queries(of.out), m.out);
  widen(dq, of_queries(p.dq), m.dq);
  widen(dk, of_keys(p.dk), m.dk);
  widen(dv, of_keys(p.dv), m.dv);
  Errors errors = errors_of(of);
  errors.last = std::ldexp(1.0, -8);
  errors.out += errors.last * (1 + errors.out);
  errors.slope += 2.02 * errors.last;
  // These multiply pairs of bfloat16, so weights and slopes are rounded.
  for (const char* name : {"amx_bf16", "avx512_bf16"})
    if (std::strcmp(kernels.isa, name) == 0) errors.factor = errors.last;
  return compare(kernels, p, m, naive(p, m, masks), errors);
}

}  // namespace

int try_attention(const Kernels& kernels, std::mt19937& random) {
  const int threads = static_cast<int>(pick(random, 1, 2));
  if (try_both_passes(kernels, random, threads) != 0) return 1;
  return try_bfloat16(kernels, random, threads);
}

}  // namespace fuzz
}  // namespace bestof
