#include "fuzz/product.h"

#include <cmath>
#include <cstdio>
#include <vector>

#include "fuzz/company.h"

namespace bestof {
namespace fuzz {
namespace {

// A matrix of a batch with random strides, in memory of exactly its extent.
struct Operand {
  MatrixStrides strides;
  long count;  // elements of its memory
};

Operand random_operand(long batch, long rows, long columns, bool any, std::mt19937& random) {
  const bool turned = pick(random, 0, 1) == 1;
  const long run = turned ? rows : columns, lines = turned ? columns : rows;
  const long step = any && pick(random, 0, 3) == 0 ? 2 : 1;
  const long stride = step * run + pick(random, 0, 5);
  const long matrix = lines * stride + pick(random, 0, 3);
  const bool repeated = any && pick(random, 0, 3) == 0;
  Operand o;
  o.strides = {turned ? step : stride, turned ? stride : step, repeated ? 0 : matrix};
  o.count = 1 + (batch - 1) * o.strides.batch + (rows - 1) * o.strides.row +
            (columns - 1) * o.strides.column;
  return o;
}

long place(const MatrixStrides& s, long matrix, long row, long column) {
  return matrix * s.batch + row * s.row + column * s.column;
}

// Few rows, few columns, a long depth that is shared, or anything.
Product random_product(bool few, std::mt19937& random) {
  Product p = {};
  p.batch = pick(random, 0, 3) == 0 ? pick(random, 2, 3) : 1;
  p.rows = pick(random, 1, 50);
  p.columns = pick(random, 1, 90);
  p.depth = pick(random, 0, 7) == 0 ? pick(random, 500, 1700) : pick(random, 0, 70);
  if (pick(random, 0, 15) == 0) p.rows = pick(random, 150, 400);
  if (few && pick(random, 0, 1) == 0) {
    p.columns = pick(random, 1, kFewRowsMost);
  } else if (few) {
    p.rows = pick(random, 1, kFewRowsMost);
  }
  return p;
}

struct Sums {
  std::vector<double> value, magnitude;
};

Sums naive(const Product& p, const float* a, const float* b, const float* bias,
           const float* residual, const float* factor) {
  Sums sums;
  for (long matrix = 0; matrix < p.batch; ++matrix) {
    for (long i = 0; i < p.rows; ++i) {
      for (long j = 0; j < p.columns; ++j) {
        const double start[] = {bias ? bias[j] : 0.0,
                                residual ? residual[place(p.c, matrix, i, j)] : 0.0};
        double value = start[0] + start[1], magnitude = std::fabs(start[0]) + std::fabs(start[1]);
        for (long k = 0; k < p.depth; ++k) {
          const double product = 1.0 * a[place(p.a, matrix, i, k)] * b[place(p.b, matrix, k, j)];
          value += product;
          magnitude += std::fabs(product);
        }
        const double times = factor ? factor[place(p.c, matrix, i, j)] : 1.0;
        sums.value.push_back(times * value);
        sums.magnitude.push_back(std::fabs(times) * magnitude);
      }
    }
  }
  return sums;
}

bool close(const Product& p, const float* c, const Sums& wanted, bool rounds) {
  long at = 0;
  for (long matrix = 0; matrix < p.batch; ++matrix) {
    for (long i = 0; i < p.rows; ++i) {
      for (long j = 0; j < p.columns; ++j, ++at) {
        const double error = c[place(p.c, matrix, i, j)] - wanted.value[at];
        // Rounding errs by 2^-24 for each sum and each product, and by 2^-8 for each operand of
        // bfloat16.
        const double bound = std::ldexp(static_cast<double>(p.depth + 4), -24) +
                             (rounds ? 2.02 * std::ldexp(1.0, -8) : 0.0);
        if (!(std::fabs(error) <= bound * wanted.magnitude[at])) return false;
      }
    }
  }
  return true;
}

int fail(const Kernels& kernels, const char* name, const Product& p) {
  std::fprintf(stderr,
               "%s %s: wrong product of %ld x [%ld, %ld, %ld], a %ld,%ld b %ld,%ld c %ld,%ld\n",
               kernels.isa, name, p.batch, p.rows, p.depth, p.columns, p.a.row, p.a.column, p.b.row,
               p.b.column, p.c.row, p.c.column);
  return 1;
}

}  // namespace

int try_product(const Kernels& kernels, std::mt19937& random, std::vector<long>& computed) {
  computed.resize(kernels.product_count);
  Product p = random_product(pick(random, 0, 1) == 1, random);
  const Operand left = random_operand(p.batch, p.rows, p.depth > 0 ? p.depth : 1, true, random);
  const Operand right = random_operand(p.batch, p.depth > 0 ? p.depth : 1, p.columns, true, random);
  const Operand result = random_operand(p.batch, p.rows, p.columns, false, random);
  p.a = left.strides;
  p.b = right.strides;
  p.c = result.strides;
  const Buffer a = exact(left.count, random, true), b = exact(right.count, random, true);
  const Buffer bias = exact(p.columns, random, true), residual = exact(result.count, random, true);
  const Buffer factor = exact(result.count, random, true);
  const bool multiply = pick(random, 0, 3) == 0;
  const bool add = pick(random, 0, 1) == 1, offset = pick(random, 0, 1) == 1;
  const int threads = static_cast<int>(pick(random, 1, 3));
  const Sums wanted = naive(p, a.get(), b.get(), offset ? bias.get() : nullptr,
                            add ? residual.get() : nullptr, multiply ? factor.get() : nullptr);
  for (int i = 0; i < kernels.product_count; ++i) {
    const ProductAlgorithm& row = kernels.products[i];
    if (!applies(row, p)) continue;
    const bool packs = row.pass->pack && p.b.batch == 0 && pick(random, 0, 1) == 1;
    const Buffer packed = exact(packs ? row.pass->packed_floats(p) : 0, random, false);
    if (packs) row.pass->pack(p, b.get(), packed.get(), threads);
    const Buffer scratch = exact(row.pass->scratch_floats(p, packs, threads), random, false);
    const Buffer c = exact(result.count, random, false);
    row.pass->run(
        p, {a.get(), b.get(), packs ? packed.get() : nullptr, c.get(),
            offset ? bias.get() : nullptr, add ? residual.get() : nullptr,
            multiply ? factor.get() : nullptr, Activation::kNone, 0.0f, scratch.get(), threads});
    ++computed[i];
    if (!close(p, c.get(), wanted, row.rounds == Rounds::kBoth)) return fail(kernels, row.name, p);
  }
  return 0;
}

}  // namespace fuzz
}  // namespace bestof
