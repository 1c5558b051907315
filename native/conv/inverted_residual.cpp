// The three layers of an inverted residual, a row of results at a time. The expanded image, which
// is four to six times as large as x, never lies in memory as a whole: only the rows that the next
// row of depthwise results reads do, in L2. So do the depthwise results of one row.
#include "conv/inverted_residual.h"

#include <omp.h>

#include "conv/algorithms.h"
#include "conv/depthwise_rows.h"
#include "conv/lowered.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// The memory of one thread, in floats. lines: the expanded rows, [panel of channels][line][pixel]
// [kPanel]. row: depthwise results, [pixel][row_stride]. pointers: to the results of one row.
struct Layout {
  Lines<kPanel> lines;
  long panels, row_stride, row, pointers;

  explicit Layout(const InvertedResidual& p)
      : lines(p.depthwise),
        panels(divide_up(p.depthwise.in_channels, kPanel)),
        row_stride(copied_stride<float>(p.depthwise.in_channels)),
        row(p.projects() ? p.depthwise.out_width * row_stride : 0),
        pointers(row_block_floats(larger(p.depthwise.in_width, p.depthwise.out_width), 1)) {
    // An expanded row is written whole, also where no result reads its end.
    lines.pixels = larger(lines.pixels, p.depthwise.pad_left + p.depthwise.in_width);
  }

  long panel_floats() const { return lines.floats(); }
  long floats() const { return round_up(panels * panel_floats() + row, 16) + pointers; }
};

// One thread's memory, and what it computes in it.
struct Worker {
  const InvertedResidual& p;
  const InvertedResidualCall& call;
  const Layout& layout;
  float *lines, *row;
  RowBlock<float, float> block;  // of one row of pixels; only its `row[0]` and `out` are used

  Worker(const InvertedResidual& problem, const InvertedResidualCall& given, const Layout& places,
         float* memory)
      : p(problem),
        call(given),
        layout(places),
        lines(memory),
        row(memory + places.panels * places.panel_floats()) {
    clear_padding();
    block =
        place_row_block<float, float>(memory + places.floats() - places.pointers,
                                      larger(p.depthwise.in_width, p.depthwise.out_width), 1, 0, 0);
  }

  // Sets the pixels of the lines to zero that lie outside of the image.
  void clear_padding() {
    const Lines<kPanel>& all = layout.lines;
    const long begin = p.depthwise.pad_left, end = begin + p.depthwise.in_width;
    for (long line = 0; line < layout.panels * (all.mask + 1); ++line) {
      float* pixel = lines + line * all.line_floats();
      for (long i = 0; i < begin * kPanel; ++i) pixel[i] = 0.0f;
      for (long i = end * kPanel; i < all.line_floats(); ++i) pixel[i] = 0.0f;
    }
  }

  // Multiplies a row of `pixels` pixels, `stride` apart and `depth` deep, by a panel of `outputs`
  // columns, and writes results to block.out.
  void multiply(const float* from, long pixels, long stride, long depth, const LayerCall& layer,
                long outputs, long panel) {
    block.depth = depth;
    block.stride = stride;
    const TileCut cut = cut_rows(pixels);
    const Columns<float> columns = {layer.weights, panel, panel + 1, outputs, 0};
    for (long t = 0; t < cut.tiles; ++t) {
      const long first = cut.begin(t), rows = cut.begin(t + 1) - first;
      const float* tile = from + first * stride;
      const TileRows<float> at = {&tile, 1, 0, stride};
      const float* result = call.result;
      if (panel == 0) {
        multiply_panel<Walk::kRegularFetching>(rows, block, first, at, columns, panel,
                                               layer.epilogue, result, tile + rows * stride);
      } else {
        multiply_panel<Walk::kRegular>(rows, block, first, at, columns, panel, layer.epilogue,
                                       result, tile);
      }
    }
  }

  // The first line of a panel.
  float* lines_of(long panel) const { return lines + panel * layout.panel_floats(); }

  // Expands row y of an image into the lines of a panel.
  void expand(const float* image, long y, long panel) {
    const Problem& d = p.depthwise;
    // Tiles write channel panel * kPanel of a pixel, which is channel 0 in the lines of the panel.
    float* to = lines_of(panel) + layout.lines.at(y) + d.pad_left * kPanel - panel * kPanel;
    for (long i = 0; i < d.in_width; ++i) block.out[i] = to + i * kPanel;
    multiply(image + y * d.in_width * p.in_channels, d.in_width, p.in_channels, p.in_channels,
             call.expansion, d.in_channels, panel);
  }

  // Copies row y of an image that is not expanded into the lines of a panel.
  void copy(const float* image, long y, long panel) const {
    const Problem& d = p.depthwise;
    const float* from = image + y * d.in_width * d.in_channels;
    each_vector(panel, [&](long c, long lanes) {
      copy_row(d, from + c, lanes, layout.lines, lines_of(panel) + c % kPanel + layout.lines.at(y));
    });
  }

  // Writes the depthwise results of a panel of row oy, `apart` elements apart from pixel to pixel.
  void filter(long oy, float* to, long apart, long panel) const {
    const Problem& d = p.depthwise;
    each_vector(panel, [&](long c, long lanes) {
      const Strip<kPanel, float> strip = {d,
                                          call.depthwise.epilogue,
                                          weights_at(d, call.depthwise.weights, 0, c),
                                          lines_of(panel) + c % kPanel,
                                          nullptr,
                                          c,
                                          lanes};
      strip.row(layout.lines, oy, to + c, apart);
    });
  }

  // Calls f(first channel, channels) for each vector of a panel.
  template <class F>
  void each_vector(long panel, const F& f) const {
    const long end = smaller((panel + 1) * kPanel, p.depthwise.in_channels);
    for (long c = panel * kPanel; c < end; c += kLanes) f(c, smaller(end - c, kLanes));
  }

  // Projects the depthwise results of one row to `to`.
  void project(float* to) {
    const long width = p.depthwise.out_width;
    for (long i = 0; i < width; ++i) block.out[i] = to + i * p.out_channels;
    for (long panel = 0; panel * kPanel < p.out_channels; ++panel)
      multiply(row, width, layout.row_stride, p.depthwise.in_channels, call.projection,
               p.out_channels, panel);
  }

  // Computes rows [begin, end) of the results of image n.
  void compute(long n, long begin, long end) {
    const Problem& d = p.depthwise;
    const float* image =
        call.x + n * d.in_height * d.in_width * (p.expands() ? p.in_channels : d.in_channels);
    const long channels = p.projects() ? p.out_channels : d.in_channels;
    float* result = call.result + n * d.out_height * d.out_width * channels;
    long ready = 0;  // rows of the image before this one are in the lines, or not read any more
    for (long oy = begin; oy < end; ++oy) {
      const long top = oy * d.stride_y - d.pad_top;
      const long behind = smaller(top + (d.kernel_height - 1) * d.dilation_y + 1, d.in_height);
      float* to = result + oy * d.out_width * channels;
      ready = larger(ready, top);
      // The filter reads new lines of a panel while they are in L1.
      for (long panel = 0; panel < layout.panels; ++panel) {
        for (long y = ready; y < behind; ++y) {
          if (p.expands()) {
            expand(image, y, panel);
          } else {
            copy(image, y, panel);
          }
        }
        if (p.projects()) {
          filter(oy, row, layout.row_stride, panel);
        } else {
          filter(oy, to, channels, panel);
        }
      }
      ready = larger(ready, behind);
      if (p.projects()) project(to);
    }
  }
};

long scratch_floats(const InvertedResidual& p, int threads) {
  return threads * Layout(p).floats();
}

// Returns the parts into which the rows of an image are cut. Each expands some rows of its
// neighbour once more, so there are no more than the threads need.
long parts_of(const InvertedResidual& p, int threads) {
  return smaller(divide_up(threads, p.depthwise.batch), p.depthwise.out_height);
}

void run(const InvertedResidual& p, const InvertedResidualCall& call) {
  const Layout layout(p);
  const long parts = parts_of(p, call.threads), rows = p.depthwise.out_height;
#pragma omp parallel num_threads(call.threads)
  {
    Worker worker(p, call, layout, call.scratch + omp_get_thread_num() * layout.floats());
#pragma omp for schedule(dynamic, 1)
    for (long item = 0; item < p.depthwise.batch * parts; ++item) {
      worker.compute(item / parts, part_begin(rows, parts, item % parts),
                     part_begin(rows, parts, item % parts + 1));
    }
  }
}

}  // namespace

const InvertedResidualPass inverted_residual = {run, scratch_floats};

}  // namespace BESTOF_TARGET
}  // namespace bestof
