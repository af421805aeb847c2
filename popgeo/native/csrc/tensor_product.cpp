// The kernels of tensor products over edges, once for each instruction set. Sums go in one order whatever that is: a
// block of channels is added lane by lane, and lanes in order at the end.
#include "tensor_product.h"

#include <cstring>

#include "vectors.h"

#define INLINE inline __attribute__((always_inline))

#ifndef POPGEO_ISA
#define POPGEO_ISA baseline
#endif

namespace popgeo {
POPGEO_PRODUCT(POPGEO_ISA)

namespace POPGEO_ISA {

constexpr int BLOCK = 16;
constexpr int MOST = 11 * 11;  // components of x times those of g, up to degree 5

// What a path's coefficients make of y: a matrix from the components of x to those of g.
template <class T>
static inline void mix(const Path& path, const Term* terms, const T* y, T* matrix) {
  for (int64_t at = 0; at < path.num_x * path.num_g; ++at) matrix[at] = 0;
  for (int64_t at = path.first; at < path.last; ++at) {
    const Term& term = terms[at];
    matrix[term.i * path.num_g + term.k] += T(term.factor) * y[path.y + term.j];
  }
}

// One value for each channel of a block, in vectors by their type: compilers leave loops over so few lanes one by one.
template <class T>
struct Lanes {
  using Vector = typename POPGEO_ISA::Vector<T>::type;
  static constexpr int COUNT = BLOCK * int(sizeof(T)) / VECTOR_BYTES;
  Vector all[COUNT];

  INLINE void load(const T* from, int lanes) {
    if (lanes == BLOCK) {
      for (int at = 0; at < COUNT; ++at) memcpy(&all[at], from + at * (BLOCK / COUNT), sizeof(Vector));
    } else {
      T few[BLOCK] = {};
      for (int lane = 0; lane < lanes; ++lane) few[lane] = from[lane];
      memcpy(all, few, sizeof(few));
    }
  }

  INLINE void store(T* to, int lanes) const {
    if (lanes == BLOCK) {
      for (int at = 0; at < COUNT; ++at) memcpy(to + at * (BLOCK / COUNT), &all[at], sizeof(Vector));
    } else {
      T few[BLOCK];
      memcpy(few, all, sizeof(few));
      for (int lane = 0; lane < lanes; ++lane) to[lane] = few[lane];
    }
  }

  INLINE void add_scaled(const Lanes& other, T factor) {
    for (int at = 0; at < COUNT; ++at) all[at] += other.all[at] * factor;
  }

  INLINE void add_product(const Lanes& left, const Lanes& right) {
    for (int at = 0; at < COUNT; ++at) all[at] += left.all[at] * right.all[at];
  }

  INLINE void multiply(const Lanes& other) {
    for (int at = 0; at < COUNT; ++at) all[at] *= other.all[at];
  }
};

template <class T>
static INLINE Lanes<T> loaded(const T* from, int lanes) {
  Lanes<T> made;
  made.load(from, lanes);
  return made;
}

// Calls body with the number of lanes of each block of channels: a constant, so that whole blocks stay in registers.
template <class Body>
static INLINE void by_blocks(int64_t channels, Body body) {
  int64_t at = 0;
  for (; at + BLOCK <= channels; at += BLOCK) body(at, BLOCK);
  if (at < channels) body(at, int(channels - at));
}

template <class T>
void to_rows(const Product& product, const T* x, const T* y, const T* w, const int64_t* src, const int64_t* edges,
             int64_t num_edges, T* sums) {
  for (int64_t at = 0; at < product.width_g; ++at) sums[at] = 0;
  T matrix[MOST];
  for (int64_t nth = 0; nth < num_edges; ++nth) {
    const int64_t edge = edges[nth];
    const T *row = x + src[edge] * product.width_x, *weight = w + edge * product.width_w;
    for (int64_t p = 0; p < product.num_paths; ++p) {
      const Path& path = product.paths[p];
      mix(path, product.terms, y + edge * product.width_y, matrix);
      by_blocks(path.channels, [&](int64_t from, int lanes) __attribute__((always_inline)) {
        for (int64_t k = 0; k < path.num_g; ++k) {
          Lanes<T> sum = {};
          for (int64_t i = 0; i < path.num_x; ++i) {
            const T factor = matrix[i * path.num_g + k];
            if (factor != 0) sum.add_scaled(loaded(row + path.x + i * path.channels + from, lanes), factor);
          }
          T* out = sums + path.g + k * path.channels + from;
          Lanes<T> made = loaded(out, lanes);
          made.add_product(loaded(weight + path.w + from, lanes), sum);
          made.store(out, lanes);
        }
      });
    }
  }
}

template <class T>
void to_weights(const Product& product, const T* x, const T* y, const T* g, T* out) {
  T matrix[MOST];
  for (int64_t p = 0; p < product.num_paths; ++p) {
    const Path& path = product.paths[p];
    mix(path, product.terms, y, matrix);
    by_blocks(path.channels, [&](int64_t from, int lanes) __attribute__((always_inline)) {
      Lanes<T> sum = {};
      for (int64_t k = 0; k < path.num_g; ++k) {
        Lanes<T> mixed = {};
        for (int64_t i = 0; i < path.num_x; ++i) {
          const T factor = matrix[i * path.num_g + k];
          if (factor != 0) mixed.add_scaled(loaded(x + path.x + i * path.channels + from, lanes), factor);
        }
        sum.add_product(loaded(g + path.g + k * path.channels + from, lanes), mixed);
      }
      sum.store(out + path.w + from, lanes);
    });
  }
}

template <class T>
void to_edge(const Product& product, const T* x, const T* w, const T* g, T* out) {
  T matrix[MOST];
  for (int64_t j = 0; j < product.width_y; ++j) out[j] = 0;
  for (int64_t p = 0; p < product.num_paths; ++p) {
    const Path& path = product.paths[p];
    for (int64_t i = 0; i < path.num_x; ++i)
      for (int64_t k = 0; k < path.num_g; ++k) {
        Lanes<T> total = {};
        by_blocks(path.channels, [&](int64_t from, int lanes) __attribute__((always_inline)) {
          const T *left = x + path.x + i * path.channels + from, *right = g + path.g + k * path.channels + from;
          Lanes<T> weighted = loaded(w + path.w + from, lanes);
          weighted.multiply(loaded(left, lanes));
          total.add_product(weighted, loaded(right, lanes));
        });
        T sum[BLOCK];
        total.store(sum, BLOCK);
        for (int half = BLOCK / 2; half; half /= 2)
          for (int lane = 0; lane < half; ++lane) sum[lane] += sum[lane + half];
        matrix[i * path.num_g + k] = sum[0];
      }
    for (int64_t at = path.first; at < path.last; ++at) {
      const Term& term = product.terms[at];
      out[path.y + term.j] += T(term.factor) * matrix[term.i * path.num_g + term.k];
    }
  }
}

#define POPGEO_INSTANCES(T)                                                                                         \
  template void to_rows<T>(const Product&, const T*, const T*, const T*, const int64_t*, const int64_t*, int64_t, T*); \
  template void to_weights<T>(const Product&, const T*, const T*, const T*, T*);                                    \
  template void to_edge<T>(const Product&, const T*, const T*, const T*, T*);
POPGEO_INSTANCES(float)
POPGEO_INSTANCES(double)

}  // namespace POPGEO_ISA
}  // namespace popgeo
