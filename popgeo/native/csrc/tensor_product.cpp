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
constexpr int MOST = 11 * 11;  // components of x times those of g, up to degree 5; and components of y, up to degree 10

// What a path's coefficients make of y: a factor for each of its entries.
template <class T>
static inline void mix(const Product& product, int64_t p, const T* y, T* factors) {
  for (int64_t at = product.starts[p]; at < product.starts[p + 1]; ++at) {
    T factor = 0;
    for (int64_t term = product.entries[at].first; term < product.entries[at].last; ++term)
      factor += T(product.terms[term].factor) * y[product.paths[p].y + product.terms[term].j];
    *factors++ = factor;
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

// Calls body with each component of g that a path has, and what x brings to it.
template <class T, class Body>
static INLINE void by_components(const Product& product, int64_t p, const T* factors, const T* x, int64_t from, int lanes,
                                 Body body) {
  const Path& path = product.paths[p];
  for (int64_t at = product.starts[p]; at < product.starts[p + 1];) {
    const int64_t k = product.entries[at].k;
    Lanes<T> sum = {};
    for (; at < product.starts[p + 1] && product.entries[at].k == k; ++at)
      sum.add_scaled(loaded(x + path.x + product.entries[at].i * path.channels + from, lanes), *factors++);
    body(path.g + k * path.channels + from, sum);
  }
}

template <class T>
void to_rows(const Product& product, const T* x, const T* y, const T* w, const int64_t* src, const int64_t* edges,
             int64_t num_edges, T* sums) {
  for (int64_t at = 0; at < product.width_g; ++at) sums[at] = 0;
  T factors[MOST];
  for (int64_t nth = 0; nth < num_edges; ++nth) {
    const int64_t edge = edges[nth];
    const T *row = x + src[edge] * product.width_x, *weight = w + edge * product.width_w;
    for (int64_t p = 0; p < product.num_paths; ++p) {
      mix(product, p, y + edge * product.width_y, factors);
      by_blocks(product.paths[p].channels, [&](int64_t from, int lanes) __attribute__((always_inline)) {
        const Lanes<T> weights = loaded(weight + product.paths[p].w + from, lanes);
        by_components(product, p, factors, row, from, lanes, [&](int64_t at, const Lanes<T>& sum)
                      __attribute__((always_inline)) {
          Lanes<T> made = loaded(sums + at, lanes);
          made.add_product(weights, sum);
          made.store(sums + at, lanes);
        });
      });
    }
  }
}

template <class T>
void to_weights(const Product& product, const T* x, const T* y, const T* g, T* out) {
  T factors[MOST];
  for (int64_t p = 0; p < product.num_paths; ++p) {
    mix(product, p, y, factors);
    by_blocks(product.paths[p].channels, [&](int64_t from, int lanes) __attribute__((always_inline)) {
      Lanes<T> total = {};
      by_components(product, p, factors, x, from, lanes, [&](int64_t at, const Lanes<T>& sum)
                    __attribute__((always_inline)) { total.add_product(loaded(g + at, lanes), sum); });
      total.store(out + product.paths[p].w + from, lanes);
    });
  }
}

template <class T>
void to_edge(const Product& product, const T* x, const T* w, const T* g, T* out) {
  Lanes<T> totals[MOST];
  for (int64_t j = 0; j < product.width_y; ++j) totals[j] = {};
  for (int64_t p = 0; p < product.num_paths; ++p) {
    const Path& path = product.paths[p];
    by_blocks(path.channels, [&](int64_t from, int lanes) __attribute__((always_inline)) {
      const Lanes<T> weights = loaded(w + path.w + from, lanes);
      Lanes<T> weighted = {};
      for (int64_t at = product.starts[p], k = -1; at < product.starts[p + 1]; ++at) {
        const Entry& entry = product.entries[at];
        if (entry.k != k) {
          k = entry.k, weighted = weights;
          weighted.multiply(loaded(g + path.g + k * path.channels + from, lanes));
        }
        Lanes<T> joined = weighted;
        joined.multiply(loaded(x + path.x + entry.i * path.channels + from, lanes));
        for (int64_t term = entry.first; term < entry.last; ++term)
          totals[path.y + product.terms[term].j].add_scaled(joined, T(product.terms[term].factor));
      }
    });
  }
  for (int64_t j = 0; j < product.width_y; ++j) {
    T sum[BLOCK];
    totals[j].store(sum, BLOCK);
    for (int half = BLOCK / 2; half; half /= 2)
      for (int lane = 0; lane < half; ++lane) sum[lane] += sum[lane + half];
    out[j] = sum[0];
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
