// The product of matrices of any size, whose products are of bfloat16 and whose sums are float32.
// Operands of float32 are rounded on the way. B is packed as a whole, in pairs of steps of depth;
// rows are copied block by block.
#include <omp.h>

#include "conv/operands.h"
#include "gemm/algorithms.h"
#include "gemm/pair_kernel.h"
#include "gemm/tile.h"
#include "simd/isa.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// Steps of depth that are gathered at once.
constexpr long kGathered = 64;

// Rounds `count` elements that lie `stride` apart.
template <class From>
void gather(const From* from, long stride, long count, Bfloat16* to) {
  if (stride == 1) return round_or_copy(from, to, count);
  From line[kGathered];
  for (long k = 0; k < count; k += kGathered) {
    const long n = smaller(count - k, kGathered);
    for (long i = 0; i < n; ++i) line[i] = from[(k + i) * stride];
    round_or_copy(line, to + k, n);
  }
}

// The distance of copied rows in elements: an odd number of cache lines.
long row_stride(long depth) {
  return (divide_up(depth, 32) | 1) * 32;
}

// Rows of a block: copied, they take up to half of L2.
long block_rows(const Product& p, int threads) {
  const long fitting = level2_bytes() / 4 / row_stride(p.depth) / kTileRows;
  const long tiles = larger(smaller(fitting, 16), 1);
  const long share = divide_up(p.rows, static_cast<long>(threads));
  return smaller(tiles * kTileRows, round_up(larger(share, 1), kTileRows));
}

long pairs_of(const Product& p) {
  return divide_up(p.depth, 2);
}

long packed_floats(const Product& p) {
  return round_up(p.columns, kPanel) * pairs_of(p);
}

// Packs B as [panel][pair][kPanel], tails zero. A float is a pair.
template <class From>
void pack_pairs(const Product& p, const From* b, Bfloat16* packed, int threads) {
  const long panels = divide_up(p.columns, kPanel);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long panel = 0; panel < panels; ++panel) {
    Pair* to = reinterpret_cast<Pair*>(packed) + panel * pairs_of(p) * kPanel;
    for (long first = 0; first < p.depth; first += kGathered) {
      const long count = smaller(p.depth - first, kGathered);
      for (long j = 0; j < kPanel; ++j) {
        Bfloat16 line[kGathered] = {};
        if (const long column = panel * kPanel + j; column < p.columns)
          gather(b + column * p.b.column + first * p.b.row, p.b.row, count, line);
        for (long k = 0; k < count; k += 2) to[(first + k) / 2 * kPanel + j] = load_pair(line + k);
      }
    }
  }
}

void pack(const Product& p, const void* b, float* packed, int threads) {
  if (p.element == Element::kBfloat16) {
    pack_pairs(p, halves(b), halves(packed), threads);
  } else {
    pack_pairs(p, floats(b), halves(packed), threads);
  }
}

long scratch_floats(const Product& p, bool packed, int threads) {
  const long rows = block_rows(p, threads) * row_stride(p.depth) / 2;
  return (packed ? 0 : round_up(packed_floats(p), 16)) + threads * rows;
}

// The results of R copied rows by one panel.
template <int R, class Out>
void multiply_tile(long rows, const Bfloat16* first, long stride, const Bfloat16* panel, long depth,
                   long columns, const Target<Out>& target) {
  if constexpr (R > 0) {
    if (rows != R) return multiply_tile<R - 1>(rows, first, stride, panel, depth, columns, target);
    fetch_target<R>(target.c, target.stride, target.turned, columns);
    Accumulator<R> acc;
    multiply<Walk::kRegular>(acc, TileRows<Bfloat16>{&first, 1, 0, stride}, 1, depth, panel, panel);
    finish_tile(acc, target, columns);
  }
}

// One matrix of the batch.
template <class Element>
void run_matrix(const Product& p, const Element* a, const Bfloat16* packed,
                const Target<Element>& target, float* scratch, int threads) {
  const long height = block_rows(p, threads), blocks = divide_up(p.rows, height);
  const long panels = divide_up(p.columns, kPanel), stride = row_stride(p.depth);
  const long parts = smaller(panels, divide_up(static_cast<long>(threads), blocks));
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (long item = 0; item < blocks * parts; ++item) {
    const long first = part_begin(p.rows, blocks, item / parts);
    const long count = part_begin(p.rows, blocks, item / parts + 1) - first;
    Bfloat16* rows = halves(scratch + omp_get_thread_num() * height * stride / 2);
    for (long i = 0; i < count; ++i)
      gather(a + (first + i) * p.a.row, p.a.column, p.depth, rows + i * stride);
    const TileCut tiles = cut_rows(count);
    const long last = part_begin(panels, parts, item % parts + 1);
    for (long panel = part_begin(panels, parts, item % parts); panel < last; ++panel) {
      for (long tile = 0; tile < tiles.tiles; ++tile) {
        const long begin = tiles.begin(tile);
        multiply_tile<kTileRows>(tiles.begin(tile + 1) - begin, rows + begin * stride, stride,
                                 packed + panel * pairs_of(p) * 2 * kPanel, p.depth,
                                 smaller(p.columns - panel * kPanel, kPanel),
                                 target_at(target, first + begin, panel * kPanel));
      }
    }
  }
}

template <class Element>
void run_all(const Product& p, const ProductCall& call) {
  const bool turned = p.c.column != 1;
  const float* packed = call.packed ? call.packed : call.scratch;
  float* rows = call.scratch + (call.packed ? 0 : round_up(packed_floats(p), 16));
  for (long matrix = 0; matrix < p.batch; ++matrix) {
    if (!call.packed && (matrix == 0 || p.b.batch != 0))
      pack(p, static_cast<const Element*>(call.b) + matrix * p.b.batch, call.scratch, call.threads);
    Target<Element> target = {static_cast<Element*>(call.c) + matrix * p.c.batch,
                              turned ? p.c.column : p.c.row,
                              turned,
                              nullptr,
                              call.bias,
                              false,
                              nullptr,
                              call.activation,
                              call.slope};
    if (call.residual)
      target.added = static_cast<const Element*>(call.residual) + matrix * p.c.batch;
    if (call.factor) target.factor = static_cast<const Element*>(call.factor) + matrix * p.c.batch;
    run_matrix(p, static_cast<const Element*>(call.a) + matrix * p.a.batch, halves(packed), target,
               rows, call.threads);
  }
}

void run(const Product& p, const ProductCall& call) {
  if (p.element == Element::kBfloat16) return run_all<Bfloat16>(p, call);
  run_all<float>(p, call);
}

}  // namespace

const ProductPass products::blocked_bf16 = {run, scratch_floats, packed_floats, pack};

}  // namespace BESTOF_TARGET
}  // namespace bestof
