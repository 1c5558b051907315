// Winograd's square tiles for few channels a group. The micro-kernel's panels of two vectors would
// be half empty: here the products of a frequency are one vector of results wide.
//
// Most tiles of a small image lie at its rim. So the rows of pixels that some rows of tiles read
// are copied to L1, with their padding, and every tile is a whole one: with the transforms of
// winograd_transforms.h, which tell apart tiles at the rim and short ones, 160 channels of 14x14
// pixels in 10 groups took 40 us, more than half of that in the transforms; they take 31.
#pragma once
#include <omp.h>

#include "conv/algorithm.h"
#include "conv/epilogue.h"
#include "conv/group_units.h"
#include "conv/operands.h"
#include "conv/weight_transform.h"
#include "gemm/micro_kernel.h"

namespace bestof {
namespace BESTOF_TARGET {

// Tiles whose products are summed at once, in registers: 16 for the 4x4 tiles of 14x14 results.
constexpr int kTilesAtOnce = kTileRows == 14 ? 16 : 12;

// Floats from the weights in use to those that are asked for: other layers of a network have driven
// them out of L2.
constexpr long kWeightsAhead = 1024;

// How a problem is cut into blocks of rows of tiles, and where the values of a block lie.
struct GroupTiles {
  long tiles_y, tiles_x;                    // of an image
  long rows, blocks;                        // rows of tiles of a block; blocks of an image
  long pixels;                              // of a line, with its padding
  long v_stride, m_stride, v_step, m_step;  // floats to the next tile, and to the next frequency

  long tiles() const { return rows * tiles_x; }
};

// Products of R tiles by the weights of a vector of results. kPlanes: vectors of a tile where that
// is usual, so that distances are constants; else 0. kShared: whether groups share the vector.
template <int R, int kPlanes, bool kShared>
inline void multiply_group(const GroupTiles& t, long inputs, const float* v, const float* u,
                           float* m) {
  const long v_stride = kPlanes ? kPlanes * kLanes : t.v_stride;
  Vec sum[R];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) sum[i] = Vec{};
  VecInt from = group_lanes(inputs);
  for (long j = 0; j < inputs; ++j, u += kLanes, from += 1) {
    const Vec weight = load(u);
    __builtin_prefetch(u + kWeightsAhead, 0, 3);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const float* tile = v + i * v_stride;
      sum[i] += weight * (kShared ? __builtin_shuffle(load(tile), from) : broadcast(tile[j]));
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) store(m + i * t.m_stride, sum[i]);
}

template <int R, int kPlanes, bool kShared>
BESTOF_INLINE void multiply_groups(long count, const GroupTiles& t, long inputs, const float* v,
                                   const float* u, float* m) {
  if constexpr (R > 0) {
    if (count == R) return multiply_group<R, kPlanes, kShared>(t, inputs, v, u, m);
    multiply_groups<R - 1, kPlanes, kShared>(count, t, inputs, v, u, m);
  }
}

template <int M>
struct GroupedWinogradPass {
  using Axis = Winograd<M>;
  static constexpr int kAlpha = Axis::kAlpha;
  static constexpr long kFrequencies = kAlpha * kAlpha;

  // Wider groups fill the panels of the micro-kernel.
  static bool supports(const Problem& p) {
    const GroupUnits units(p);
    return units.inputs > 1 && units.inputs <= 64 && units.outputs <= 64;
  }

  static GroupTiles plan(const Problem& p, const GroupUnits& units) {
    constexpr long kMost = 16;
    GroupTiles t = {};
    t.tiles_y = divide_up(p.out_height, M);
    t.tiles_x = divide_up(p.out_width, M);
    t.rows = smaller(larger(kMost / t.tiles_x, 1), t.tiles_y);
    t.blocks = divide_up(t.tiles_y, t.rows);
    t.pixels = t.tiles_x * M + 2;
    t.v_stride = units.planes * kLanes;
    t.m_stride = units.vectors * kLanes;
    t.v_step = odd_lines(t.tiles() * t.v_stride);
    t.m_step = odd_lines(t.tiles() * t.m_stride);
    return t;
  }

  static long scratch(const Problem& p, int threads) {
    const GroupUnits units(p);
    return threads * floats_each(plan(p, units), units);
  }

  static double flops(const Problem& p) {
    const double tiles =
        static_cast<double>(p.batch) * divide_up(p.out_height, M) * divide_up(p.out_width, M);
    return 2.0 * tiles * kFrequencies * (p.in_channels / p.groups) * p.out_channels;
  }

  static long weight_floats(const Problem& p) {
    const GroupUnits units(p);
    return units.units * unit_floats(units);
  }

  // Packed as [unit][frequency][vector of results][channel of the group][kLanes], filled up with
  // zeros.
  static void pack(const Problem& p, const void* weights, float* packed, int threads) {
    const GroupUnits units(p);
    const long step = units.vectors * units.inputs * kLanes;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long item = 0; item < units.units * units.vectors; ++item) {
      const long unit = item / units.vectors, skipped = item % units.vectors * kLanes;
      const long first = units.first(unit, units.outputs) + skipped;
      const long lanes =
          smaller(units.count(unit, units.outputs, p.out_channels) - skipped, kLanes);
      const float* w = floats(weights) + first * 9 * units.inputs;
      float* to = packed + unit * unit_floats(units) + skipped * units.inputs;
      for (long j = 0; j < units.inputs; ++j) {
        const auto tap = [&](int r, int s) {
          Vec v = {};
          for (long l = 0; l < lanes; ++l) v[l] = w[(l * 9 + r * 3 + s) * units.inputs + j];
          return v;
        };
        const auto at = [&](int y, int x) { return to + (y * kAlpha + x) * step + j * kLanes; };
        transform_taps<Axis, Axis>(tap, at);
      }
    }
  }

  static void run(const Problem& p, const Call& call) {
    const GroupUnits units(p);
    if (units.shared) return run_planes<1, true>(p, units, call);
    if (units.planes == 1) return run_planes<1, false>(p, units, call);
    if (units.planes == 2) return run_planes<2, false>(p, units, call);
    run_planes<0, false>(p, units, call);
  }

  static constexpr Pass forward() { return {run, scratch, flops, weight_floats, pack, supports}; }

 private:
  // An odd number of cache lines, so that the frequencies of a tile fall into different sets of L1.
  static long odd_lines(long floats) { return (divide_up(floats, 16) | 1) * 16; }

  static long unit_floats(const GroupUnits& units) {
    return kFrequencies * units.vectors * units.inputs * kLanes;
  }

  // The pixels of a block, and later its results, lie before V and the products.
  static long line_floats(const GroupTiles& t) { return t.pixels * kLanes; }
  static long image_floats(const GroupTiles& t, const GroupUnits& units) {
    return round_up((t.rows * M + 2) * line_floats(t) * larger(units.planes, units.vectors), 16);
  }
  static long floats_each(const GroupTiles& t, const GroupUnits& units) {
    return image_floats(t, units) + kFrequencies * (t.v_step + t.m_step);
  }

  template <int kPlanes, bool kShared>
  static void run_planes(const Problem& p, const GroupUnits& units, const Call& call) {
    const GroupTiles t = plan(p, units);
#pragma omp parallel for schedule(static) num_threads(call.threads)
    for (long item = 0; item < units.units * p.batch * t.blocks; ++item) {
      const long block = item % t.blocks, n = item / t.blocks % p.batch,
                 unit = item / t.blocks / p.batch;
      const long first = block * t.rows, rows = smaller(t.tiles_y - first, t.rows);
      float* image = call.scratch + omp_get_thread_num() * floats_each(t, units);
      float* v = image + image_floats(t, units);
      float* m = v + kFrequencies * t.v_step;
      copy_pixels(p, t, units, call, n, unit, first * M, rows * M + 2, image);
      transform_pixels(t, units, rows, image, v);
      multiply<kPlanes, kShared>(t, units, rows * t.tiles_x,
                                 floats(call.second) + unit * unit_floats(units), v, m);
      for (long k = 0; k < units.vectors; ++k) {
        transform_products(t, rows, m + k * kLanes, image);
        write(p, t, units, call, n, unit, k * kLanes, first * M, rows * M, image);
      }
    }
  }

  // Copies `rows` rows of pixels, from that of row `top` of the results on; zeros stand for those
  // outside of the image.
  static void copy_pixels(const Problem& p, const GroupTiles& t, const GroupUnits& units,
                          const Call& call, long n, long unit, long top, long rows, float* to) {
    const long from = units.first(unit, units.inputs);
    const long count = units.count(unit, units.inputs, p.in_channels);
    for (long q = 0; q < units.planes; ++q) {
      const long lanes = smaller(count - q * kLanes, kLanes);
      for (long r = 0; r < rows; ++r, to += line_floats(t)) {
        const long y = top + r - p.pad_top;
        const bool inside = y >= 0 && y < p.in_height;
        const long begin = inside ? smaller(larger(p.pad_left, 0), t.pixels) : t.pixels;
        const long end = larger(smaller(t.pixels, p.pad_left + p.in_width), begin);
        const float* row = floats(call.first) +
                           ((n * p.in_height + y) * p.in_width - p.pad_left) * p.in_channels +
                           from + q * kLanes;
        for (long x = 0; x < begin; ++x) store(to + x * kLanes, Vec{});
        for (long x = begin; x < end; ++x) {
          const float* pixel = row + x * p.in_channels;
          store(to + x * kLanes, lanes == kLanes ? load(pixel) : load_first(pixel, lanes));
        }
        for (long x = end; x < t.pixels; ++x) store(to + x * kLanes, Vec{});
      }
    }
  }

  // Computes V = BT d B of all tiles.
  static void transform_pixels(const GroupTiles& t, const GroupUnits& units, long rows,
                               const float* image, float* v) {
    const long line = line_floats(t);
    for (long q = 0; q < units.planes; ++q, image += (rows * M + 2) * line) {
      for (long tile = 0; tile < rows * t.tiles_x; ++tile) {
        const float* corner = image + tile / t.tiles_x * M * line + tile % t.tiles_x * M * kLanes;
        float* to = v + tile * t.v_stride + q * kLanes;
        Vec half[kAlpha][kAlpha];
#pragma GCC unroll 8
        for (int x = 0; x < kAlpha; ++x) {
          Vec d[kAlpha], o[kAlpha];
#pragma GCC unroll 8
          for (int y = 0; y < kAlpha; ++y) d[y] = load(corner + y * line + x * kLanes);
          Axis::input(d, o);
#pragma GCC unroll 8
          for (int y = 0; y < kAlpha; ++y) half[y][x] = o[y];
        }
#pragma GCC unroll 8
        for (int y = 0; y < kAlpha; ++y) {
          Vec o[kAlpha];
          Axis::input(half[y], o);
#pragma GCC unroll 8
          for (int x = 0; x < kAlpha; ++x) store(to + (y * kAlpha + x) * t.v_step, o[x]);
        }
      }
    }
  }

  template <int kPlanes, bool kShared>
  static void multiply(const GroupTiles& t, const GroupUnits& units, long tiles, const float* u,
                       const float* v, float* m) {
    const long parts = divide_up(tiles, kTilesAtOnce);
    for (long xi = 0; xi < kFrequencies; ++xi, v += t.v_step, m += t.m_step) {
      for (long k = 0; k < units.vectors; ++k, u += units.inputs * kLanes) {
        for (long part = 0; part < parts; ++part) {
          const long begin = part_begin(tiles, parts, part);
          multiply_groups<kTilesAtOnce, kPlanes, kShared>(
              part_begin(tiles, parts, part + 1) - begin, t, units.inputs, v + begin * t.v_stride,
              u, m + begin * t.m_stride + k * kLanes);
        }
      }
    }
  }

  // Computes AT m A of all tiles, for a vector of results, where the pixels lay.
  static void transform_products(const GroupTiles& t, long rows, const float* m, float* image) {
    const long line = line_floats(t);
    for (long tile = 0; tile < rows * t.tiles_x; ++tile, m += t.m_stride) {
      float* corner = image + tile / t.tiles_x * M * line + tile % t.tiles_x * M * kLanes;
      Vec half[M][kAlpha];
#pragma GCC unroll 8
      for (int x = 0; x < kAlpha; ++x) {
        Vec d[kAlpha], o[M];
#pragma GCC unroll 8
        for (int y = 0; y < kAlpha; ++y) d[y] = load(m + (y * kAlpha + x) * t.m_step);
        Axis::output(d, o);
#pragma GCC unroll 8
        for (int y = 0; y < M; ++y) half[y][x] = o[y];
      }
#pragma GCC unroll 8
      for (int y = 0; y < M; ++y) {
        Vec o[M];
        Axis::output(half[y], o);
#pragma GCC unroll 8
        for (int x = 0; x < M; ++x) store(corner + y * line + x * kLanes, o[x]);
      }
    }
  }

  // Finishes `rows` rows of results from `top` on, of the unit's channels from `skipped` on. Rows
  // below the image are left out.
  static void write(const Problem& p, const GroupTiles& t, const GroupUnits& units,
                    const Call& call, long n, long unit, long skipped, long top, long rows,
                    const float* image) {
    const long first = units.first(unit, units.outputs) + skipped;
    const long lanes = smaller(units.count(unit, units.outputs, p.out_channels) - skipped, kLanes);
    float* result = floats(call.result);
    for (long y = top; y < smaller(top + rows, p.out_height); ++y, image += line_floats(t)) {
      float* out = result + (n * p.out_height + y) * p.out_width * p.out_channels + first;
      const auto place = [&](long i) { return out + i * p.out_channels; };
      finish_pixels(image, kLanes, p.out_width, place, lanes, first, call.epilogue, result);
    }
  }
};

}  // namespace BESTOF_TARGET
}  // namespace bestof
