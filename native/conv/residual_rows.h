// The three layers of an inverted residual, a row of results at a time. The expanded image, which
// is four to six times as large as x, never lies in memory as a whole: only the rows that the next
// row of depthwise results reads do, in L2, as float32. So do the depthwise results of one row.
//
// `In` is the element that the 1x1 convolutions multiply. Pixels of another element are converted
// when their row is expanded, and depthwise results when they are written.
#pragma once
#include <omp.h>

#include "conv/depthwise_rows.h"
#include "conv/inverted_residual.h"
#include "conv/lowered.h"

namespace bestof {
namespace BESTOF_TARGET {

// The memory of one thread, in floats. lines: the expanded rows, [panel of channels][line][pixel]
// [kPanel]. row: depthwise results, [pixel][row_stride]. pixels: converted rows of x, [line][pixel]
// [pixel_stride], as many as there are lines; none if x holds `In`. pointers: to the results of one
// row.
template <class In, class Element>
struct ResidualLayout {
  Lines<kPanel> lines;
  long panels, row_stride, row, pixel_stride, pixels, pointers;

  explicit ResidualLayout(const InvertedResidual& p)
      : lines(p.depthwise),
        panels(divide_up(p.depthwise.in_channels, kPanel)),
        row_stride(copied_stride<In>(p.depthwise.in_channels)),
        row(p.projects() ? floats_of<In>(p.depthwise.out_width * row_stride) : 0),
        pixel_stride(kConverts ? copied_stride<In>(p.in_channels) : p.in_channels),
        pixels(kConverts ? floats_of<In>(lines_count() * line_pixels(p)) : 0),
        pointers(row_block_floats(larger(p.depthwise.in_width, p.depthwise.out_width), 1)) {
    // An expanded row is written whole, also where no result reads its end.
    lines.pixels = larger(lines.pixels, p.depthwise.pad_left + p.depthwise.in_width);
  }

  static constexpr bool kConverts = sizeof(In) != sizeof(Element);

  long lines_count() const { return lines.mask + 1; }
  long line_pixels(const InvertedResidual& p) const {
    return p.expands() ? p.depthwise.in_width * pixel_stride : 0;
  }
  long panel_floats() const { return lines.floats(); }
  long floats() const {
    return round_up(panels * panel_floats() + round_up(row, 16) + pixels, 16) + pointers;
  }
};

// One thread's memory, and what it computes in it. `Element` is that of x and of the results.
template <class In, class Element>
struct ResidualWorker {
  using Layout = ResidualLayout<In, Element>;

  const InvertedResidual& p;
  const InvertedResidualCall& call;
  const Layout& layout;
  float* lines;
  In *row, *pixels;
  float* pointers;

  ResidualWorker(const InvertedResidual& problem, const InvertedResidualCall& given,
                 const Layout& places, float* memory)
      : p(problem),
        call(given),
        layout(places),
        lines(memory),
        row(reinterpret_cast<In*>(memory + places.panels * places.panel_floats())),
        pixels(row + round_up(places.row, 16) * static_cast<long>(sizeof(float) / sizeof(In))),
        pointers(memory + places.floats() - places.pointers) {
    clear_padding();
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

  // The rows of one product; only `out` is used of them.
  template <class Out>
  RowBlock<In, Out> block_of(long depth, long stride) const {
    return place_row_block<In, Out>(pointers, larger(p.depthwise.in_width, p.depthwise.out_width),
                                    1, depth, stride);
  }

  // Multiplies a row of `count` pixels by a panel of `outputs` columns, and writes results to
  // block.out.
  template <class Out>
  void multiply(const RowBlock<In, Out>& block, const In* from, long count, const LayerCall& layer,
                long outputs, long panel) const {
    const TileCut cut = cut_rows(count);
    const Columns<In> columns = {static_cast<const In*>(layer.weights), panel, panel + 1, outputs,
                                 0};
    const Out* result = static_cast<const Out*>(call.result);
    for (long t = 0; t < cut.tiles; ++t) {
      const long first = cut.begin(t), rows = cut.begin(t + 1) - first;
      const In* tile = from + first * block.stride;
      const TileRows<In> at = {&tile, 1, 0, block.stride};
      if (panel == 0 && !Layout::kConverts) {
        multiply_panel<Walk::kRegularFetching>(rows, block, first, at, columns, panel,
                                               layer.epilogue, result, tile + rows * block.stride);
      } else {
        multiply_panel<Walk::kRegular>(rows, block, first, at, columns, panel, layer.epilogue,
                                       result, tile);
      }
    }
  }

  // The first line of a panel.
  float* lines_of(long panel) const { return lines + panel * layout.panel_floats(); }

  // Row y of an image as the expansion multiplies it.
  const In* pixels_of(const Element* image, long y) const {
    if constexpr (Layout::kConverts) {
      return pixels + (y & layout.lines.mask) * layout.line_pixels(p);
    } else {
      return image + y * p.depthwise.in_width * p.in_channels;
    }
  }

  // Converts row y of an image to what the expansion multiplies.
  void convert(const Element* image, long y) const {
    if constexpr (Layout::kConverts) {
      In* to = pixels + (y & layout.lines.mask) * layout.line_pixels(p);
      const Element* from = image + y * p.depthwise.in_width * p.in_channels;
      for (long i = 0; i < p.depthwise.in_width; ++i)
        round_or_copy(from + i * p.in_channels, to + i * layout.pixel_stride, p.in_channels);
    }
  }

  // Expands row y of an image into the lines of a panel.
  void expand(const Element* image, long y, long panel) const {
    const Problem& d = p.depthwise;
    // Tiles write channel panel * kPanel of a pixel, which is channel 0 in the lines of the panel.
    float* to = lines_of(panel) + layout.lines.at(y) + d.pad_left * kPanel - panel * kPanel;
    const RowBlock<In, float> block = block_of<float>(p.in_channels, layout.pixel_stride);
    for (long i = 0; i < d.in_width; ++i) block.out[i] = to + i * kPanel;
    multiply(block, pixels_of(image, y), d.in_width, call.expansion, d.in_channels, panel);
  }

  // Copies row y of an image that is not expanded into the lines of a panel.
  void copy(const Element* image, long y, long panel) const {
    const Problem& d = p.depthwise;
    const Element* from = image + y * d.in_width * d.in_channels;
    each_vector(panel, [&](long c, long lanes) {
      copy_row(d, from + c, lanes, layout.lines, lines_of(panel) + c % kPanel + layout.lines.at(y));
    });
  }

  // Writes the depthwise results of a panel of row oy, `apart` elements apart from pixel to pixel.
  template <class Out>
  void filter(long oy, Out* to, long apart, long panel) const {
    const Problem& d = p.depthwise;
    const float* weights = static_cast<const float*>(call.depthwise.weights);
    each_vector(panel, [&](long c, long lanes) {
      const Strip<kPanel, Out> strip = {d,
                                        call.depthwise.epilogue,
                                        weights_at(d, weights, 0, c),
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
  void project(Element* to) const {
    const long width = p.depthwise.out_width;
    const RowBlock<In, Element> block =
        block_of<Element>(p.depthwise.in_channels, layout.row_stride);
    for (long i = 0; i < width; ++i) block.out[i] = to + i * p.out_channels;
    for (long panel = 0; panel * kPanel < p.out_channels; ++panel)
      multiply(block, row, width, call.projection, p.out_channels, panel);
  }

  // Computes rows [begin, end) of the results of image n.
  void compute(long n, long begin, long end) const {
    const Problem& d = p.depthwise;
    const Element* image =
        static_cast<const Element*>(call.x) +
        n * d.in_height * d.in_width * (p.expands() ? p.in_channels : d.in_channels);
    const long channels = p.projects() ? p.out_channels : d.in_channels;
    Element* result =
        static_cast<Element*>(call.result) + n * d.out_height * d.out_width * channels;
    long ready = 0;  // rows of the image before this one are in the lines, or not read any more
    for (long oy = begin; oy < end; ++oy) {
      const long top = oy * d.stride_y - d.pad_top;
      const long behind = smaller(top + (d.kernel_height - 1) * d.dilation_y + 1, d.in_height);
      Element* to = result + oy * d.out_width * channels;
      ready = larger(ready, top);
      if (p.expands()) {
        for (long y = ready; y < behind; ++y) convert(image, y);
      }
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

template <class In, class Element>
inline long residual_floats(const InvertedResidual& p, int threads) {
  return threads * ResidualLayout<In, Element>(p).floats();
}

// Returns the parts into which the rows of an image are cut. Each expands some rows of its
// neighbour once more, so there are no more than the threads need.
inline long residual_parts(const InvertedResidual& p, int threads) {
  return smaller(divide_up(threads, p.depthwise.batch), p.depthwise.out_height);
}

template <class In, class Element>
inline void run_residual_rows(const InvertedResidual& p, const InvertedResidualCall& call) {
  const ResidualLayout<In, Element> layout(p);
  const long parts = residual_parts(p, call.threads), rows = p.depthwise.out_height;
#pragma omp parallel num_threads(call.threads)
  {
    const ResidualWorker<In, Element> worker(p, call, layout,
                                             call.scratch + omp_get_thread_num() * layout.floats());
#pragma omp for schedule(dynamic, 1)
    for (long item = 0; item < p.depthwise.batch * parts; ++item) {
      worker.compute(item / parts, part_begin(rows, parts, item % parts),
                     part_begin(rows, parts, item % parts + 1));
    }
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof
