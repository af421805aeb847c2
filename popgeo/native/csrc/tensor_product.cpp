// The kernels of tensor products over edges, once for each instruction set. Sums go in one order whatever that is: a
// block of channels is added lane by lane, and lanes in order at the end.
#include "tensor_product.h"

#ifndef POPGEO_ISA
#define POPGEO_ISA baseline
#endif

namespace popgeo {
POPGEO_PRODUCT(POPGEO_ISA)

namespace POPGEO_ISA {

constexpr int LANES = 16;
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

// Calls body with the number of lanes of each block of channels: a constant, so that whole blocks stay in registers.
template <class Body>
static inline __attribute__((always_inline)) void by_blocks(int64_t channels, Body body) {
  int64_t at = 0;
  for (; at + LANES <= channels; at += LANES) body(at, LANES);
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
          T sum[LANES] = {};
          for (int64_t i = 0; i < path.num_x; ++i) {
            const T factor = matrix[i * path.num_g + k];
            if (factor == 0) continue;
            const T* channel = row + path.x + i * path.channels + from;
            for (int lane = 0; lane < lanes; ++lane) sum[lane] += channel[lane] * factor;
          }
          T* out = sums + path.g + k * path.channels + from;
          for (int lane = 0; lane < lanes; ++lane) out[lane] += weight[path.w + from + lane] * sum[lane];
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
      T sum[LANES] = {};
      for (int64_t k = 0; k < path.num_g; ++k) {
        T mixed[LANES] = {};
        for (int64_t i = 0; i < path.num_x; ++i) {
          const T factor = matrix[i * path.num_g + k];
          if (factor == 0) continue;
          const T* channel = x + path.x + i * path.channels + from;
          for (int lane = 0; lane < lanes; ++lane) mixed[lane] += channel[lane] * factor;
        }
        const T* channel = g + path.g + k * path.channels + from;
        for (int lane = 0; lane < lanes; ++lane) sum[lane] += channel[lane] * mixed[lane];
      }
      for (int lane = 0; lane < lanes; ++lane) out[path.w + from + lane] = sum[lane];
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
        T sum[LANES] = {};
        by_blocks(path.channels, [&](int64_t from, int lanes) __attribute__((always_inline)) {
          const T *left = x + path.x + i * path.channels + from, *right = g + path.g + k * path.channels + from;
          for (int lane = 0; lane < lanes; ++lane) sum[lane] += w[path.w + from + lane] * left[lane] * right[lane];
        });
        for (int half = LANES / 2; half; half /= 2)
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
