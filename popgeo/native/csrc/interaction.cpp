// Interactions of SchNet's kind (arXiv:1706.08566), and PaiNN's of scalars and vectors (arXiv:2102.03150), with both
// backward passes, each in one pass over the edges.
//
// A pass takes some lines of channels and visits the edges in the plan's order: by blocks with nodes that stay in the cache,
// and within a block by distance, so that the window of the grid moves row by row. Each edge interpolates its filter when
// it needs it; no memory grows with edges times channels. Threads share lines of channels, so that no order, and no bit,
// depends on the number of threads or on the width of vectors.
//
// The file is compiled once per instruction set (see setup.py); interaction_plan.cpp chooses.
#include "denormals.h"
#include "interaction_table.h"

namespace popgeo {
namespace POPGEO_ISA {

#ifndef POPGEO_HAS_FMA

const InteractionKernels interaction_kernels = {nullptr, nullptr};

#else

constexpr int64_t PARALLEL_EDGES = 256;  // for fewer edges a parallel region costs more than it saves
constexpr int64_t RUN = 16;              // edges of one window whose gradients are added to the table together

// An edge as it is listed, or its reverse with the negative direction.
struct Ends {
  int64_t source, receiver;
  int sign;
};

// Some lines of channels of an interaction; row pointers begin at these lines.
template <class Kind, class T>
struct LinesPass {
  const Shared<T>& shared;
  const InteractionCall& call;
  const int64_t column, section, stride;  // stride: from one line of a filter to the next one
  const int32_t *edges, *windows, *sources, *receivers;

  LinesPass(const Shared<T>& s, int64_t line)
      : shared(s), call(s.call), column(line * LINE), section(s.section),
        stride(Kind::HAS_DIRECTION ? s.section : LINE), edges(s.part(s.plan.edges())),
        windows(s.part(s.plan.windows())), sources(s.part(s.plan.sources())), receivers(s.part(s.plan.receivers())) {}

  POPGEO_INLINE const T* x(int64_t node) const { return shared.x + node * shared.x_row + column; }
  POPGEO_INLINE const T* along_x(int64_t node) const { return shared.along_x + node * shared.x_row + column; }
  POPGEO_INLINE const T* grad(int64_t node) const { return shared.grad + node * shared.grad_row + column; }
  POPGEO_INLINE T* to_x(int64_t node) const { return shared.out + node * shared.x_row + column; }

  template <class Visit>
  POPGEO_INLINE void visit_ends(int64_t position, Visit visit) const {
    const int64_t source = sources[position], receiver = receivers[position];
    visit(Ends{source, receiver, 1});
    if (call.half_list) visit(Ends{receiver, source, -1});
  }

  POPGEO_INLINE Axes<T> axes_of(const void* directions, int64_t edge, int sign) const {
    Axes<T> axes = {};
    for (int k = 0; Kind::HAS_DIRECTION && directions && k < AXES; ++k)
      axes.of[k] = T(sign) * static_cast<const T*>(directions)[AXES * edge + k];
    return axes;
  }

  POPGEO_INLINE void interpolated(const T* table, int64_t position, Line<T>* filters) const {
    interpolate<Kind>(table + windows[position] * shared.row + column, shared.row, stride, shared.weights(position),
                      filters);
  }

  void clear(T* rows, int64_t count, int64_t row, int sections) const {
    for (int64_t node = 0; node < count; ++node)
      for (int64_t s = 0; s < sections; ++s)
        for (int64_t line = 0; line < Kind::WIDTH; ++line)
          store_line(rows + node * row + s * section + column + line * LINE, Line<T>{});
  }

  void forward() const {
    clear(shared.out, call.num_rows, shared.grad_row, Kind::HAS_DIRECTION ? Kind::RESULTS : 1);
    for (int64_t position = 0; position < shared.num_active; ++position) {
      Line<T> filters[Kind::FILTERS];
      interpolated(shared.values, position, filters);
      visit_ends(position, [&](const Ends& ends) __attribute__((always_inline)) {
        Kind::add_message(shared.out + ends.receiver * shared.grad_row + column, x(ends.source), section, filters,
                          axes_of(call.direction, edges[position], ends.sign));
      });
    }
  }

  // Adds one edge's part in the backward pass. `to_values` becomes the gradient of its filter.
  POPGEO_INLINE void go_back(int64_t position, Line<T>* to_values) const {
    const int64_t edge = edges[position];
    Line<T> values[Kind::FILTERS], slopes[Kind::FILTERS], by_axis[AXES];
    clear(by_axis);
    if (call.out || call.grad_direction) interpolated(shared.values, position, values);
    visit_ends(position, [&](const Ends& ends) __attribute__((always_inline)) {
      const Axes<T> d = axes_of(call.direction, edge, ends.sign);
      if (call.grad_table || call.grad_r)
        Kind::add_to_filters(to_values, grad(ends.receiver), x(ends.source), section, d);
      if (call.out) Kind::add_back(to_x(ends.source), grad(ends.receiver), section, values, d);
      if constexpr (Kind::HAS_DIRECTION)
        if (call.grad_direction) add_to_axes(by_axis, load_line(x(ends.source) + 4 * section) * values[2], ends);
    });
    if (call.grad_r) {
      interpolated(shared.slopes, position, slopes);
      Line<T> sum = {};
      for (int s = 0; s < Kind::FILTERS; ++s) sum = fma(to_values[s], slopes[s], sum);
      put_by_distance(position, sum);
    }
    put_by_axis(position, by_axis);
  }

  // Adds one edge's part in the second backward pass: the gradient of <along_x, grad_x> + <along_r, grad_r> +
  // <along_direction, grad_direction>. `to_slopes` becomes the gradient of the filter's slope.
  POPGEO_INLINE void go_back_again(int64_t position, Line<T>* to_values, Line<T>* to_slopes) const {
    const int64_t edge = edges[position];
    const bool has_r = call.along_r, has_axes = Kind::HAS_DIRECTION && call.along_direction;
    const T change = has_r ? static_cast<const T*>(call.along_r)[edge] : T(0);
    Line<T> values[Kind::FILTERS], slopes[Kind::FILTERS], changes[Kind::FILTERS], by_axis[AXES];
    clear(by_axis);
    interpolated(shared.values, position, values);
    if (has_r || call.grad_r) interpolated(shared.slopes, position, slopes);
    for (int s = 0; has_r && s < Kind::FILTERS; ++s) changes[s] = slopes[s] * change;
    visit_ends(position, [&](const Ends& ends) __attribute__((always_inline)) {
      const Axes<T> d = axes_of(call.direction, edge, ends.sign), turned = axes_of(call.along_direction, edge, ends.sign);
      const T *from = x(ends.source), *by = grad(ends.receiver), *along = call.along_x ? along_x(ends.source) : nullptr;
      T* const to = call.grad_grad ? shared.grad_grad + ends.receiver * shared.grad_row + column : nullptr;
      if (along) Kind::add_to_filters(to_values, by, along, section, d);
      if (along && to) Kind::add_message(to, along, section, values, d);
      if (has_r) {
        Kind::add_to_filters(to_slopes, by, from, section, d);
        if (to) Kind::add_message(to, from, section, changes, d);
        if (call.out) Kind::add_back(to_x(ends.source), by, section, changes, d);
      }
      if constexpr (Kind::HAS_DIRECTION) {
        if (has_axes) Kind::add_to_filters_along(to_values, by, from, section, turned);
        if (has_axes && to) Kind::add_message_along(to, from, section, values, turned);
        if (has_axes && call.out) Kind::add_back_along(to_x(ends.source), by, section, values, turned);
        if (call.grad_direction && along) add_to_axes(by_axis, load_line(along + 4 * section) * values[2], ends);
        if (call.grad_direction && has_r) add_to_axes(by_axis, load_line(from + 4 * section) * changes[2], ends);
      }
    });
    if (call.grad_r) {
      Line<T> bends[Kind::FILTERS], sum = {};
      for (int s = 0; s < Kind::FILTERS; ++s) sum = fma(to_values[s], slopes[s], sum);
      if (has_r) interpolated(shared.bends, position, bends);
      for (int s = 0; has_r && s < Kind::FILTERS; ++s) sum = fma(to_slopes[s] * change, bends[s], sum);
      put_by_distance(position, sum);
    }
    for (int s = 0; has_r && s < Kind::FILTERS; ++s) to_slopes[s] = to_slopes[s] * change;
    put_by_axis(position, by_axis);
  }

  POPGEO_INLINE void clear(Line<T>* by_axis) const {
    for (int k = 0; call.grad_direction && k < AXES; ++k) by_axis[k] = {};
  }

  POPGEO_INLINE void add_to_axes(Line<T>* by_axis, const Line<T>& sent, const Ends& ends) const {
    for (int k = 0; k < AXES; ++k)
      by_axis[k] = fma(sent * T(ends.sign), load_line(grad(ends.receiver) + (1 + k) * section), by_axis[k]);
  }

  POPGEO_INLINE void put_by_distance(int64_t position, const Line<T>& sum) const {
    shared.by_distance[column / LINE * call.num_edges + position] = sum_of(sum);
  }

  POPGEO_INLINE void put_by_axis(int64_t position, const Line<T>* by_axis) const {
    for (int k = 0; call.grad_direction && k < AXES; ++k)
      shared.by_axis[(column / LINE * AXES + k) * call.num_edges + position] = sum_of(by_axis[k]);
  }

  // Adds the gradients of `count` filters of one window to the rows of that window.
  POPGEO_INLINE void add_to_window(T* table, int64_t first, int64_t count, const Line<T> (*gradients)[Kind::FILTERS]) const {
    constexpr int LANES_OF_T = Vector<T>::lanes;
    for (int s = 0; s < Kind::FILTERS; ++s)
      for (int v = 0; v < Line<T>::COUNT; ++v) {
        T* const rows = table + windows[first] * shared.row + s * stride + column + v * LANES_OF_T;
        typename Vector<T>::type sums[POINTS];
#pragma GCC unroll 8
        for (int64_t k = 0; k < POINTS; ++k) sums[k] = load(rows + k * shared.row);
        for (int64_t i = 0; i < count; ++i) {
          const auto gradient = gradients[i][s].of[v];
          const T* weights = shared.weights(first + i);
#pragma GCC unroll 8
          for (int64_t k = 0; k < POINTS; ++k) sums[k] = fma(gradient, splat(weights[k]), sums[k]);
        }
#pragma GCC unroll 8
        for (int64_t k = 0; k < POINTS; ++k) store(rows + k * shared.row, sums[k]);
      }
  }

  void backward() const {
    const bool has_slopes = call.is_second && call.along_r;
    if (call.out) clear(shared.out, call.num_sources, shared.x_row, Kind::HAS_DIRECTION ? Kind::FEATURES : 1);
    if (call.grad_grad) clear(shared.grad_grad, call.num_rows, shared.grad_row, Kind::HAS_DIRECTION ? Kind::RESULTS : 1);
    for (int64_t point = 0; call.grad_table && point < call.num_points; ++point)
      for (int s = 0; s < Kind::FILTERS; ++s) {
        store_line(shared.grad_values + point * shared.row + s * stride + column, Line<T>{});
        if (has_slopes) store_line(shared.grad_slopes + point * shared.row + s * stride + column, Line<T>{});
      }
    for (int64_t first = 0, next; first < shared.num_active; first = next) {
      Line<T> to_values[RUN][Kind::FILTERS], to_slopes[RUN][Kind::FILTERS];
      for (next = first; next < shared.num_active && next - first < RUN && windows[next] == windows[first]; ++next) {
        const int64_t i = next - first;
        for (int s = 0; s < Kind::FILTERS; ++s) to_values[i][s] = to_slopes[i][s] = {};
        if (call.is_second)
          go_back_again(next, to_values[i], to_slopes[i]);
        else
          go_back(next, to_values[i]);
      }
      if (!call.grad_table) continue;
      add_to_window(shared.grad_values, first, next - first, to_values);
      if (has_slopes) add_to_window(shared.grad_slopes, first, next - first, to_slopes);
    }
    for (int64_t line = 0; call.grad_table && line < Kind::WIDTH; ++line)
      shared.write_gradient(column + line * LINE, has_slopes);
  }
};

template <class Kind, class T>
inline void run_lines(const Shared<T>& shared, int64_t line) {
  const LinesPass<Kind, T> pass(shared, line);
  if (shared.call.grad)
    pass.backward();
  else
    pass.forward();
}

// Prepares the tables and copies that every line reads, in the threads of a parallel region.
template <class T>
inline void prepare(const Shared<T>& shared) {
  const InteractionCall& call = shared.call;
  const int features = shared.has_vectors() ? ScalarsAndVectors::FEATURES : 1;
  const int results = shared.has_vectors() ? ScalarsAndVectors::RESULTS : 1;
#ifdef _OPENMP
#pragma omp for schedule(static) nowait
#endif
  for (int64_t node = 0; node < call.num_sources; ++node) {
    shared.pad(shared.x, call.x, node, shared.x_row, features);
    shared.pad(shared.along_x, call.along_x, node, shared.x_row, features);
  }
#ifdef _OPENMP
#pragma omp for schedule(static) nowait
#endif
  for (int64_t node = 0; node < call.num_rows; ++node)
    shared.pad(shared.grad, call.grad, node, shared.grad_row, results);
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
  for (int64_t point = 0; point < call.num_points; ++point) shared.read_point(point);
  if (!shared.wants_slopes()) return;
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
  for (int64_t point = 0; point < call.num_points; ++point)
    shared.differentiate_point(point, shared.exact_values, shared.exact_slopes, shared.slopes);
  if (!(call.is_second && call.grad_r)) return;
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
  for (int64_t point = 0; point < call.num_points; ++point)
    shared.differentiate_point(point, shared.exact_slopes, shared.exact_bends, shared.bends);
}

// Writes the results: sums over lines of channels, and rows without padding.
template <class T>
inline void finish(const Shared<T>& shared) {
  const InteractionCall& call = shared.call;
  const int32_t* edges = shared.part(shared.plan.edges());
  const int64_t step = shared.lines_at_once();
#ifdef _OPENMP
#pragma omp for schedule(static) nowait
#endif
  for (int64_t position = 0; position < (call.grad_r || call.grad_direction ? shared.num_active : 0); ++position) {
    for (int k = 0; call.grad_direction && k < AXES; ++k) {
      T sum = 0;
      for (int64_t line = 0; line < shared.num_lines; line += step)
        sum += shared.by_axis[(line * AXES + k) * call.num_edges + position];
      static_cast<T*>(call.grad_direction)[AXES * edges[position] + k] = sum;
    }
    if (!call.grad_r) continue;
    T sum = 0;
    for (int64_t line = 0; line < shared.num_lines; line += step) sum += shared.by_distance[line * call.num_edges + position];
    static_cast<T*>(call.grad_r)[edges[position]] = sum;
  }
  const int features = shared.has_vectors() ? ScalarsAndVectors::FEATURES : 1;
  const int results = shared.has_vectors() ? ScalarsAndVectors::RESULTS : 1;
  const int64_t out_rows = call.grad ? call.num_sources : call.num_rows;
#ifdef _OPENMP
#pragma omp for schedule(static) nowait
#endif
  for (int64_t node = 0; node < (call.out ? out_rows : 0); ++node)
    shared.trim(call.out, shared.out, node, call.grad ? shared.x_row : shared.grad_row, call.grad ? features : results);
#ifdef _OPENMP
#pragma omp for schedule(static) nowait
#endif
  for (int64_t node = 0; node < (call.grad_grad ? call.num_rows : 0); ++node)
    shared.trim(call.grad_grad, shared.grad_grad, node, shared.grad_row, results);
}

template <class T>
inline void run_in(const InteractionCall& call) {
  const Shared<T> shared(call);
  const uint64_t of_caller = denormals();
  if (call.grad_r) memset(call.grad_r, 0, sizeof(T) * size_t(call.num_edges));
  if (call.grad_direction) memset(call.grad_direction, 0, sizeof(T) * size_t(AXES * call.num_edges));
#ifdef _OPENMP
#pragma omp parallel num_threads(int(call.num_threads)) if (call.num_threads > 1 && shared.num_active > PARALLEL_EDGES)
#endif
  {
    const Denormals same(of_caller);
    prepare(shared);
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 1)
#endif
    for (int64_t line = 0; line < shared.num_lines; line += shared.lines_at_once())
      (shared.has_vectors()              ? run_lines<ScalarsAndVectors, T>
       : line + 2 <= shared.num_lines    ? run_lines<Scalars<2>, T>
                                         : run_lines<Scalars<1>, T>)(shared, line);
    finish(shared);
  }
}

void run(const InteractionCall& call) { (call.is_double ? run_in<double> : run_in<float>)(call); }

int64_t workspace(const InteractionCall& call) {
  return call.is_double ? Shared<double>(call).size : Shared<float>(call).size;
}

const InteractionKernels interaction_kernels = {workspace, run};

#endif

}  // namespace POPGEO_ISA
}  // namespace popgeo
