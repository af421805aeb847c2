// Sums over edges of products of what its source, the edge, its weights and its destination have, by paths: see
// popgeo/potentials/tensor_product.py. Arrays of nodes have, for each block of channels, a row for each component.
#pragma once

#include <cstdint>

namespace popgeo {

// One path: so many channels, where its parts begin, how many components they have, and its coefficients.
struct Path {
  int64_t channels, x, num_x, y, num_y, w, g, num_g, first, last;
};

struct Term {
  int64_t i, j, k;  // components of x, y and g
  double factor;
};

// A component of x and one of g that a path joins, and the terms that say by what.
struct Entry {
  int64_t i, k, first, last;
};

// The entries of path p are from starts[p] to starts[p + 1], by k and then by i.
struct Product {
  int64_t num_paths;
  const Path* paths;
  const Term* terms;
  const Entry* entries;
  const int64_t* starts;
  int64_t num_edges, width_x, width_y, width_w, width_g;
};

#define POPGEO_PRODUCT(isa)                                                                                        \
  namespace isa {                                                                                                  \
  template <class T>                                                                                               \
  void to_rows(const Product&, const T* x, const T* y, const T* w, const int64_t* src, const int64_t* edges,       \
               int64_t num_edges, T* sums);                                                                        \
  template <class T>                                                                                               \
  void to_weights(const Product&, const T* x, const T* y, const T* g, T* out);                                     \
  template <class T>                                                                                               \
  void to_edge(const Product&, const T* x, const T* w, const T* g, T* out);                                        \
  }

}  // namespace popgeo
