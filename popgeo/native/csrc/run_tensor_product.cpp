// The C function of tensor products over edges: it checks indices, sorts edges by the row that they add to, and calls the
// kernels of the newest instruction set that the processor has. A row is the work of one thread, in the edges' order.
#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "kernels.h"
#include "tensor_product.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace popgeo {

extern int64_t chosen_isa;

POPGEO_PRODUCT(baseline)
#ifdef POPGEO_HAS_V3
POPGEO_PRODUCT(v3)
#endif
#ifdef POPGEO_HAS_V4
POPGEO_PRODUCT(v4)
#endif

struct ProductCall {
  int64_t is_double, role;  // 0 x, 1 y, 2 w, 3 g: which one is made of the other three
  const void *x, *y, *w, *g;
  const int64_t *src, *dst;
  void* out;
  int64_t num_nodes, num_paths;
  const Path* paths;
  const Term* terms;
  int64_t num_edges, width_x, width_y, width_w, width_g, num_threads;
};

// The blocks of a row of a node's values, once each, in which components change place with channels.
struct Block {
  int64_t at, channels, components;
};

static std::vector<Block> blocks_of(const Product& product, bool of_x) {
  std::vector<Block> blocks;
  for (int64_t p = 0; p < product.num_paths; ++p) {
    const Path& path = product.paths[p];
    const Block block{of_x ? path.x : path.g, path.channels, of_x ? path.num_x : path.num_g};
    bool is_known = false;
    for (const Block& other : blocks) is_known |= other.at == block.at;
    if (!is_known) blocks.push_back(block);
  }
  return blocks;
}

template <class T>
static std::vector<T> components_first(const void* values, int64_t num_rows, int64_t width, const std::vector<Block>& blocks) {
  std::vector<T> out(size_t(num_rows * width));
  const T* given = static_cast<const T*>(values);
  for (int64_t row = 0; row < num_rows; ++row)
    for (const Block& block : blocks)
      for (int64_t i = 0; i < block.components; ++i)
        for (int64_t u = 0; u < block.channels; ++u)
          out[size_t(row * width + block.at + i * block.channels + u)] =
              given[row * width + block.at + u * block.components + i];
  return out;
}

template <class T>
static void sum_rows(const Product& product, const ProductCall& call, const T* x, const T* y, const T* w,
                     const int64_t* src, const int64_t* dst, T* out) {
  std::vector<int64_t> first(size_t(call.num_nodes + 2)), edges(static_cast<size_t>(product.num_edges));
  for (int64_t e = 0; e < product.num_edges; ++e) ++first[size_t(dst[e] + 2)];
  for (int64_t row = 0; row < call.num_nodes; ++row) first[size_t(row + 2)] += first[size_t(row + 1)];
  for (int64_t e = 0; e < product.num_edges; ++e) edges[size_t(first[size_t(dst[e] + 1)]++)] = e;
  const std::vector<Block> blocks = blocks_of(product, false);
  memset(out, 0, sizeof(T) * size_t(call.num_nodes * product.width_g));
  auto* run = &baseline::to_rows<T>;
#ifdef POPGEO_HAS_V3
  if (chosen_isa >= 1) run = &v3::to_rows<T>;
#endif
#ifdef POPGEO_HAS_V4
  if (chosen_isa == 2) run = &v4::to_rows<T>;
#endif
#pragma omp parallel num_threads(int(call.num_threads)) if (call.num_threads > 1)
  {
    std::vector<T> sums(static_cast<size_t>(product.width_g));
#pragma omp for schedule(dynamic, 16)
    for (int64_t row = 0; row < call.num_nodes; ++row) {
      const int64_t from = first[size_t(row)], count = first[size_t(row + 1)] - from;
      if (!count) continue;
      run(product, x, y, w, src, edges.data() + from, count, sums.data());
      T* made = out + row * product.width_g;
      for (const Block& block : blocks)
        for (int64_t k = 0; k < block.components; ++k)
          for (int64_t u = 0; u < block.channels; ++u)
            made[block.at + u * block.components + k] = sums[size_t(block.at + k * block.channels + u)];
    }
  }
}

// What a call multiplies, with the entries of its paths; for gradients of x, x and g have changed places.
struct Paths {
  std::vector<Path> paths;
  std::vector<Term> terms;
  std::vector<Entry> entries;
  std::vector<int64_t> starts;

  Paths(const ProductCall& call, bool turned) : paths(call.paths, call.paths + call.num_paths) {
    terms.assign(call.terms, call.terms + (call.num_paths ? paths.back().last : 0));
    if (turned) {
      for (Path& path : paths)
        path = {path.channels, path.g, path.num_g, path.y, path.num_y, path.w, path.x, path.num_x, path.first, path.last};
      for (Term& term : terms) term = {term.k, term.j, term.i, term.factor};
    }
    for (const Path& path : paths) {
      starts.push_back(int64_t(entries.size()));
      std::stable_sort(terms.begin() + path.first, terms.begin() + path.last, [](const Term& one, const Term& other) {
        return one.k != other.k ? one.k < other.k : one.i < other.i;
      });
      for (int64_t at = path.first; at < path.last; ++at) {
        const Term& term = terms[size_t(at)];
        const bool goes_on = at > path.first && entries.back().i == term.i && entries.back().k == term.k;
        if (!goes_on) entries.push_back({term.i, term.k, at, at});
        entries.back().last = at + 1;
      }
    }
    starts.push_back(int64_t(entries.size()));
  }
};

template <class T>
static void run(const ProductCall& call) {
  const bool turned = call.role == 0;
  const Paths made(call, turned);
  const Product product{call.num_paths,       made.paths.data(), made.terms.data(),
                        made.entries.data(),  made.starts.data(), call.num_edges,
                        turned ? call.width_g : call.width_x, call.width_y, call.width_w,
                        turned ? call.width_x : call.width_g};
  const T *y = static_cast<const T*>(call.y), *w = static_cast<const T*>(call.w);
  T* out = static_cast<T*>(call.out);
  if (turned) {
    const std::vector<T> g = components_first<T>(call.g, call.num_nodes, call.width_g, blocks_of(product, true));
    return sum_rows<T>(product, call, g.data(), y, w, call.dst, call.src, out);
  }
  const std::vector<T> x = components_first<T>(call.x, call.num_nodes, call.width_x, blocks_of(product, true));
  if (call.role == 3) return sum_rows<T>(product, call, x.data(), y, w, call.src, call.dst, out);
  const std::vector<T> g = components_first<T>(call.g, call.num_nodes, call.width_g, blocks_of(product, false));
  if (call.role == 2) memset(out, 0, sizeof(T) * size_t(call.num_edges * call.width_w));  // no path may use some weights
  auto* by_weight = &baseline::to_weights<T>;
  auto* by_edge = &baseline::to_edge<T>;
#ifdef POPGEO_HAS_V3
  if (chosen_isa >= 1) by_weight = &v3::to_weights<T>, by_edge = &v3::to_edge<T>;
#endif
#ifdef POPGEO_HAS_V4
  if (chosen_isa == 2) by_weight = &v4::to_weights<T>, by_edge = &v4::to_edge<T>;
#endif
#pragma omp parallel for num_threads(int(call.num_threads)) if (call.num_threads > 1)
  for (int64_t e = 0; e < call.num_edges; ++e) {
    const T *left = x.data() + call.src[e] * call.width_x, *right = g.data() + call.dst[e] * call.width_g;
    if (call.role == 2)
      by_weight(product, left, y + e * call.width_y, right, out + e * call.width_w);
    else
      by_edge(product, left, w + e * call.width_w, right, out + e * call.width_y);
  }
}

}  // namespace popgeo

EXPORT int64_t popgeo_tensor_product(const popgeo::ProductCall* packed) {
  popgeo::ProductCall call;
  memcpy(&call, packed, sizeof(call));
  for (int64_t e = 0; e < call.num_edges; ++e)
    if (uint64_t(call.src[e]) >= uint64_t(call.num_nodes) || uint64_t(call.dst[e]) >= uint64_t(call.num_nodes))
      return popgeo::BAD_INPUT;
  try {
    call.is_double ? popgeo::run<double>(call) : popgeo::run<float>(call);
  } catch (const std::bad_alloc&) {
    return popgeo::NO_MEMORY;
  }
  return popgeo::OK;
}
