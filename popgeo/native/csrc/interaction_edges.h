// The parts that an edge adds to sums: messages in the forward pass, gradients in the backward passes, line by line.
// Included by interaction.cpp.
#pragma once

#include "interaction.h"
#include "vectors.h"

// Inlined, so that lines of channels stay in registers between functions.
#define POPGEO_INLINE inline __attribute__((always_inline))

#ifdef POPGEO_HAS_FMA
namespace popgeo {
namespace POPGEO_ISA {

constexpr int64_t LINE = 16;  // channels of a line, for any width of the processor's vectors
constexpr int AXES = 3;

template <class T>
struct Line {
  static constexpr int COUNT = int(LINE) / Vector<T>::lanes;
  typename Vector<T>::type of[COUNT];
};

template <class T>
POPGEO_INLINE Line<T> load_line(const T* from) {
  Line<T> line;
  for (int v = 0; v < Line<T>::COUNT; ++v) line.of[v] = load(from + v * Vector<T>::lanes);
  return line;
}

template <class T>
POPGEO_INLINE void store_line(T* to, const Line<T>& line) {
  for (int v = 0; v < Line<T>::COUNT; ++v) store(to + v * Vector<T>::lanes, line.of[v]);
}

template <class T>
POPGEO_INLINE Line<T> fma(const Line<T>& a, const Line<T>& b, Line<T> sum) {
  for (int v = 0; v < Line<T>::COUNT; ++v) sum.of[v] = fma(a.of[v], b.of[v], sum.of[v]);
  return sum;
}

template <class T>
POPGEO_INLINE Line<T> fma(const Line<T>& a, T factor, Line<T> sum) {
  for (int v = 0; v < Line<T>::COUNT; ++v) sum.of[v] = fma(a.of[v], splat(factor), sum.of[v]);
  return sum;
}

template <class T>
POPGEO_INLINE Line<T> operator*(Line<T> a, const Line<T>& b) {
  for (int v = 0; v < Line<T>::COUNT; ++v) a.of[v] = a.of[v] * b.of[v];
  return a;
}

template <class T>
POPGEO_INLINE Line<T> operator*(Line<T> a, T factor) {
  for (int v = 0; v < Line<T>::COUNT; ++v) a.of[v] = a.of[v] * splat(factor);
  return a;
}

template <class T>
POPGEO_INLINE void add_product(T* to, const Line<T>& a, const Line<T>& b) {
  store_line(to, fma(a, b, load_line(to)));
}

// Adds the halves of the lanes, then the halves of the result, and so on: one order for every instruction set.
template <class T>
POPGEO_INLINE T sum_of(const Line<T>& line) {
  T lanes[LINE], pairs[LINE / 2], fours[LINE / 4];
  store_line(lanes, line);
  for (int64_t lane = 0; lane < LINE / 2; ++lane) pairs[lane] = lanes[lane] + lanes[lane + LINE / 2];
  for (int64_t lane = 0; lane < LINE / 4; ++lane) fours[lane] = pairs[lane] + pairs[lane + LINE / 4];
  return (fours[0] + fours[2]) + (fours[1] + fours[3]);
}

template <class T>
struct Axes {
  T of[AXES];
};

// Messages x f (arXiv:1706.08566, eq. 2), for `WIDTH` lines of channels that are next to each other.
template <int LINES>
struct Scalars {
  static constexpr int WIDTH = LINES, FILTERS = LINES, FEATURES = LINES, RESULTS = LINES;
  static constexpr bool HAS_DIRECTION = false;

  template <class T>
  static POPGEO_INLINE void add_message(T* to, const T* x, int64_t, const Line<T>* filters, const Axes<T>&) {
    for (int s = 0; s < LINES; ++s) add_product(to + s * LINE, load_line(x + s * LINE), filters[s]);
  }
  template <class T>
  static POPGEO_INLINE void add_back(T* to, const T* grad, int64_t section, const Line<T>* filters, const Axes<T>& d) {
    add_message(to, grad, section, filters, d);
  }
  template <class T>
  static POPGEO_INLINE void add_to_filters(Line<T>* to, const T* grad, const T* x, int64_t, const Axes<T>&) {
    for (int s = 0; s < LINES; ++s) to[s] = fma(load_line(grad + s * LINE), load_line(x + s * LINE), to[s]);
  }
};

// Messages of scalars and vectors (arXiv:2102.03150, eq. 7 and 8). With features (a, b, c), where b has three axes, a
// filter (u, v, w) and a direction d, a message is a u, and along each axis b v + c w d. Sections of a row are the channels
// of each of these.
struct ScalarsAndVectors {
  static constexpr int WIDTH = 1, FILTERS = 3, FEATURES = 5, RESULTS = 4;
  static constexpr bool HAS_DIRECTION = true;

  template <class T>
  static POPGEO_INLINE Line<T> along(const T* vectors, int64_t section, const Axes<T>& d) {
    Line<T> sum = load_line(vectors) * d.of[0];
    for (int k = 1; k < AXES; ++k) sum = fma(load_line(vectors + k * section), d.of[k], sum);
    return sum;
  }
  template <class T>
  static POPGEO_INLINE void add_message(T* to, const T* x, int64_t section, const Line<T>* filters, const Axes<T>& d) {
    add_product(to, load_line(x), filters[0]);
    const Line<T> sent = load_line(x + 4 * section) * filters[2];
    for (int k = 0; k < AXES; ++k) {
      T* axis = to + (1 + k) * section;
      store_line(axis, fma(sent, d.of[k], fma(load_line(x + (1 + k) * section), filters[1], load_line(axis))));
    }
  }
  // The part that depends on the direction.
  template <class T>
  static POPGEO_INLINE void add_message_along(T* to, const T* x, int64_t section, const Line<T>* filters, const Axes<T>& d) {
    const Line<T> sent = load_line(x + 4 * section) * filters[2];
    for (int k = 0; k < AXES; ++k) {
      T* axis = to + (1 + k) * section;
      store_line(axis, fma(sent, d.of[k], load_line(axis)));
    }
  }
  template <class T>
  static POPGEO_INLINE void add_back(T* to, const T* grad, int64_t section, const Line<T>* filters, const Axes<T>& d) {
    add_product(to, load_line(grad), filters[0]);
    for (int k = 1; k <= AXES; ++k) add_product(to + k * section, load_line(grad + k * section), filters[1]);
    add_back_along(to, grad, section, filters, d);
  }
  template <class T>
  static POPGEO_INLINE void add_back_along(T* to, const T* grad, int64_t section, const Line<T>* filters, const Axes<T>& d) {
    add_product(to + 4 * section, along(grad + section, section, d), filters[2]);
  }
  template <class T>
  static POPGEO_INLINE void add_to_filters(Line<T>* to, const T* grad, const T* x, int64_t section, const Axes<T>& d) {
    to[0] = fma(load_line(grad), load_line(x), to[0]);
    for (int k = 1; k <= AXES; ++k) to[1] = fma(load_line(grad + k * section), load_line(x + k * section), to[1]);
    add_to_filters_along(to, grad, x, section, d);
  }
  template <class T>
  static POPGEO_INLINE void add_to_filters_along(Line<T>* to, const T* grad, const T* x, int64_t section, const Axes<T>& d) {
    to[2] = fma(load_line(x + 4 * section), along(grad + section, section, d), to[2]);
  }
};

// The filters of an edge, line by line: sums over its window of the grid, whose first row is `rows`.
template <class Kind, class T>
POPGEO_INLINE void interpolate(const T* rows, int64_t row, int64_t section, const T* weights, Line<T>* filters) {
  for (int s = 0; s < Kind::FILTERS; ++s) filters[s] = load_line(rows + s * section) * weights[0];
#pragma GCC unroll 8
  for (int64_t k = 1; k < POINTS; ++k)
    for (int s = 0; s < Kind::FILTERS; ++s)
      filters[s] = fma(load_line(rows + k * row + s * section), weights[k], filters[s]);
}

}  // namespace POPGEO_ISA
}  // namespace popgeo
#endif
