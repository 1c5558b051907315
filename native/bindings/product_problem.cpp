#include <cstring>

#include "bindings/module.h"
#include "bindings/product.h"

namespace bestof {
namespace {

void check_operand(const Shape& shape, const char* name) {
  // More elements are more than any machine holds, and would not stay within 64 bits.
  constexpr double kMost = 1L << 40;
  if (shape.size() != 2 && shape.size() != 3) {
    refuse(std::string(name) + ": expected 2 or 3 dimensions; got shape " + describe(shape));
  }
  double elements = 1.0;
  for (long extent : shape) {
    if (extent < 0 || extent >= 1L << 31)
      refuse(std::string(name) + ": expected extents from 0 to 2^31 - 1; got " + describe(shape));
    elements *= static_cast<double>(extent);
  }
  if (elements > kMost)
    refuse(std::string(name) + ": expected at most 2^40 elements; got " + describe(shape));
}

long batch_of(const Shape& shape) {
  return shape.size() == 3 ? shape[0] : 1;
}

MatrixStrides strides_of(const Layout& layout, const char* name) {
  const Shape& s = layout.strides;
  if (s.size() != layout.shape.size()) {
    refuse(std::string(name) + ": expected as many strides as dimensions; got strides " +
           describe(s) + " for shape " + describe(layout.shape));
  }
  for (long stride : s) {
    if (stride <= -(1L << 40) || stride >= 1L << 40)
      refuse(std::string(name) + ": expected strides below 2^40; got " + describe(s));
  }
  const std::size_t last = s.size() - 1;
  return {s[last - 1], s[last], layout.shape.size() == 3 && layout.shape[0] > 1 ? s[0] : 0};
}

// An axis of one element has any stride: choose the one for which the kernels are written.
void settle(MatrixStrides& s, long rows, long columns) {
  if (columns <= 1 && s.row != 1) s.column = 1;
  if (rows <= 1 && s.column != 1) s.row = 1;
}

void check_result(const Product& p) {
  const bool by_rows = p.c.column == 1;
  const long run = by_rows ? p.columns : p.rows, lines = by_rows ? p.rows : p.columns;
  const long stride = by_rows ? p.c.row : p.c.column;
  const bool contiguous = by_rows || p.c.row == 1;
  const bool apart = lines <= 1 || stride >= run;
  const long matrix = lines > 0 ? (lines - 1) * stride + run : 0;
  // Rows of a batch may also lie between those of another.
  const bool matrices =
      p.batch <= 1 || p.c.batch >= matrix ||
      (p.c.batch >= run && (lines <= 1 || stride >= (p.batch - 1) * p.c.batch + run));
  if (contiguous && apart && matrices) return;
  refuse("out: expected contiguous rows or columns that do not overlap; got strides " +
         describe({p.c.batch, p.c.row, p.c.column}) + " for shape " +
         describe({p.batch, p.rows, p.columns}));
}

// A batch whose rows of A and of C lie at one distance is a single product.
void join_batch(Product& p) {
  if (p.b.batch != 0 || p.a.batch != p.rows * p.a.row || p.c.batch != p.rows * p.c.row) return;
  p.rows *= p.batch;
  p.batch = 1;
}

}  // namespace

Shape product_shape(const Shape& a, const Shape& b) {
  check_operand(a, "a");
  check_operand(b, "b");
  const long batches[] = {batch_of(a), batch_of(b)};
  const bool fits = a[a.size() - 1] == b[b.size() - 2];
  if (!fits || (batches[0] != batches[1] && batches[0] != 1 && batches[1] != 1)) {
    refuse("shapes: expected a [M, K] and b [K, N], of one batch; got a " + describe(a) +
           " and b " + describe(b));
  }
  const Shape c = {batches[0] == 1 ? batches[1] : batches[0], a[a.size() - 2], b[b.size() - 1]};
  check_operand(c, "out");
  return a.size() == 2 && b.size() == 2 ? Shape{c[1], c[2]} : c;
}

Product make_product(const Layout& a, const Layout& b, const Layout& c, Element element) {
  const Shape shape = product_shape(a.shape, b.shape);
  Product p;
  p.element = element;
  p.batch = batch_of(shape);
  p.rows = shape[shape.size() - 2];
  p.columns = shape[shape.size() - 1];
  p.depth = a.shape[a.shape.size() - 1];
  p.a = strides_of(a, "a");
  p.b = strides_of(b, "b");
  p.c = strides_of(c, "out");
  settle(p.a, p.rows, p.depth);
  settle(p.b, p.depth, p.columns);
  settle(p.c, p.rows, p.columns);
  if (p.batch == 0 || p.rows == 0 || p.columns == 0) return p;
  check_result(p);
  if (p.batch > 1) join_batch(p);
  return p;
}

const ProductAlgorithm& find_product(const std::string& name, const Product& p, bool packs) {
  std::string known;
  for (int i = 0; i < kernels().product_count; ++i) {
    const ProductAlgorithm& algorithm = kernels().products[i];
    if (!applies(algorithm, p) || (packs && !algorithm.pass->pack)) continue;
    if (name == algorithm.name || name.empty()) return algorithm;
    known += (known.empty() ? "" : ", ") + std::string(algorithm.name);
  }
  refuse("algorithm: expected one that " + std::string(packs ? "packs " : "applies to ") +
         describe({p.batch, p.rows, p.depth}) + " by " + describe({p.depth, p.columns}) + " (" +
         known + "); got " + name);
}

}  // namespace bestof
