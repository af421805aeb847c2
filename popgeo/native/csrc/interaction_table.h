// The memory that all passes of an interaction share: rows that are padded to whole lines, and the table of filters with
// its slopes at the points of the grid. Included by interaction.cpp.
//
// A slope at a point is the slope of the polynomial through the STENCIL points around it, computed in double. Between
// points it is interpolated like the filters. So the slope of float32 filters is rounded once, after the division.
#pragma once

#include "interaction_edges.h"

#ifdef POPGEO_HAS_FMA
namespace popgeo {
namespace POPGEO_ISA {

// The derivative at point `at` of the polynomial through the points 0 to STENCIL - 1, as factors of its values there.
inline void differentiate(int64_t at, double* factors) {
  double products[STENCIL];  // of each point's differences from the others
  for (int64_t j = 0; j < STENCIL; ++j) {
    products[j] = 1;
    for (int64_t m = 0; m < STENCIL; ++m) products[j] *= m == j ? 1.0 : double(j - m);
  }
  factors[at] = 0;
  for (int64_t j = 0; j < STENCIL; ++j) {
    if (j == at) continue;
    factors[j] = products[at] / (products[j] * double(at - j));
    factors[at] += 1.0 / double(at - j);
  }
}

inline int64_t stencil_start(int64_t point, int64_t num_points) {
  const int64_t start = point - STENCIL / 2, last = num_points - STENCIL;
  return start < 0 ? 0 : start < last ? start : last;
}

template <class T>
struct Shared {
  const InteractionCall& call;
  InteractionPlan plan;
  int64_t num_active, channels, section, row, x_row, grad_row, filter_sections, num_lines;
  T *x, *grad, *along_x;                // copies, with sections of whole lines
  T *out, *grad_grad;                   // the same, before they are copied
  T *values, *slopes, *bends;           // at the points of the grid
  double *exact_values, *exact_slopes, *exact_bends;  // the same before they are rounded
  T *grad_values, *grad_slopes;
  T *by_distance, *by_axis;             // what each line of channels adds to the gradients of distances and directions
  double derivative[STENCIL][STENCIL];  // for each place in a stencil
  int64_t size = 0;

  bool has_vectors() const { return call.direction != nullptr; }
  int64_t lines_at_once() const { return has_vectors() ? 1 : 2; }
  const int32_t* part(int64_t start) const { return call.plan + start; }
  const T* weights(int64_t position) const { return static_cast<const T*>(call.weights) + POINTS * position; }
  bool wants_slopes() const { return call.is_second || call.grad_r; }

  explicit Shared(const InteractionCall& given) : call(given), plan{given.num_edges, given.num_points} {
    num_active = given.plan ? given.plan[0] : 0;
    channels = given.channels;
    section = (channels + LINE - 1) / LINE * LINE;
    filter_sections = has_vectors() ? ScalarsAndVectors::FILTERS : 1;
    row = spread(filter_sections);
    x_row = spread(has_vectors() ? ScalarsAndVectors::FEATURES : 1);
    grad_row = spread(has_vectors() ? ScalarsAndVectors::RESULTS : 1);
    num_lines = section / LINE;
    const int64_t table = call.num_points * row;
    take(x, call.num_sources * x_row);
    // Not by null pointers, because the size is needed before there are results.
    const int64_t to_x = call.num_sources * x_row, to_grad = call.num_rows * grad_row;
    take(grad, to_grad);
    take(along_x, call.is_second ? to_x : 0);
    take(out, to_x > to_grad ? to_x : to_grad);
    take(grad_grad, call.is_second ? to_grad : 0);
    take(values, table), take(slopes, table), take(bends, table);
    take(exact_values, table), take(exact_slopes, table), take(exact_bends, table);
    take(grad_values, table), take(grad_slopes, table);
    take(by_distance, num_lines * call.num_edges);
    take(by_axis, has_vectors() ? num_lines * AXES * call.num_edges : 0);
    for (int64_t at = 0; at < STENCIL; ++at) differentiate(at, derivative[at]);
  }

  // The length of a row of sections: an odd number of lines, so that a column of rows spreads over the whole cache.
  int64_t spread(int64_t sections) const { return (sections * section / LINE | 1) * LINE; }

  // Takes the next `count` numbers of the workspace, aligned to lines of memory.
  template <class Number>
  void take(Number*& to, int64_t count) {
    to = reinterpret_cast<Number*>(static_cast<char*>(call.workspace) + size);
    size += (count * int64_t(sizeof(Number)) + 63) / 64 * 64;
  }

  // Copies a row of features or of sums, with zeros up to whole lines; nothing if there is none.
  void pad(T* to, const void* from, int64_t node, int64_t width, int64_t sections) const {
    for (int64_t s = 0; from && s < sections; ++s) {
      T* start = to + node * width + s * section;
      memcpy(start, static_cast<const T*>(from) + (node * sections + s) * channels, sizeof(T) * size_t(channels));
      memset(start + channels, 0, sizeof(T) * size_t(section - channels));
    }
  }

  // Copies a row back, without the zeros.
  void trim(void* to, const T* from, int64_t node, int64_t width, int64_t sections) const {
    for (int64_t s = 0; s < sections; ++s)
      memcpy(static_cast<T*>(to) + (node * sections + s) * channels, from + node * width + s * section,
             sizeof(T) * size_t(channels));
  }

  // One row of the table.
  void read_point(int64_t point) const {
    double* exact = exact_values + point * row;
    for (int64_t s = 0; s < filter_sections; ++s) {
      const int64_t from = (point * filter_sections + s) * channels;
      if (call.table_is_double)
        memcpy(exact + s * section, static_cast<const double*>(call.table) + from, sizeof(double) * size_t(channels));
      else
        for (int64_t c = 0; c < channels; ++c) exact[s * section + c] = static_cast<const float*>(call.table)[from + c];
      for (int64_t c = channels; c < section; ++c) exact[s * section + c] = 0;
    }
    for (int64_t c = filter_sections * section; c < row; ++c) exact[c] = 0;
    round_row(exact, values + point * row);
  }

  void round_row(const double* exact, T* rounded) const {
    for (int64_t c = 0; c < row; ++c) rounded[c] = T(exact[c]);
  }

  // The derivative along the grid of the rows from `from` on, at one point.
  void differentiate_point(int64_t point, const double* from, double* exact, T* rounded) const {
    const int64_t start = stencil_start(point, call.num_points);
    double factors[STENCIL];
    for (int64_t k = 0; k < STENCIL; ++k) factors[k] = derivative[point - start][k] / call.spacing;
    for (int64_t c = 0; c < row; c += Vector<double>::lanes) {
      doubles sum = {};
      for (int64_t k = 0; k < STENCIL; ++k) sum = fma(load(from + (start + k) * row + c), splat(factors[k]), sum);
      store(exact + point * row + c, sum);
    }
    round_row(exact + point * row, rounded + point * row);
  }

  // The gradient of the table, for the lines of channels that start at one column: that of its values, and what reaches
  // them through the slopes.
  void write_gradient(int64_t column, bool has_slopes) const {
    for (int64_t s = 0; s < filter_sections; ++s) {
      const int64_t first = s * section + column, width = channels - column < LINE ? channels - column : LINE;
      double* to = exact_values + first;  // these values are no longer needed
      for (int64_t point = 0; point < call.num_points; ++point)
        for (int64_t c = 0; c < LINE; ++c) to[point * row + c] = double(grad_values[point * row + first + c]);
      for (int64_t point = 0; has_slopes && point < call.num_points; ++point) {
        const int64_t start = stencil_start(point, call.num_points);
        for (int64_t k = 0; k < STENCIL; ++k) {
          const double factor = derivative[point - start][k] / call.spacing;
          for (int64_t c = 0; c < LINE; ++c)
            to[(start + k) * row + c] += factor * double(grad_slopes[point * row + first + c]);
        }
      }
      for (int64_t point = 0; point < call.num_points; ++point)
        for (int64_t c = 0; c < width; ++c) {
          const int64_t at = (point * filter_sections + s) * channels + column + c;
          if (call.table_is_double)
            static_cast<double*>(call.grad_table)[at] = to[point * row + c];
          else
            static_cast<float*>(call.grad_table)[at] = float(to[point * row + c]);
        }
    }
  }
};

}  // namespace POPGEO_ISA
}  // namespace popgeo
#endif
