// Random walks over a large graph: the compiled twin of popgeo/sampling/random_walk.py, equal to it bit for bit. The
// function takes one structure of 64-bit numbers, in the order in which Python packs them.
#include <algorithm>
#include <cstdint>

#include "random_numbers.h"

#define POPGEO_API extern "C" __attribute__((visibility("default")))

namespace {

using namespace popgeo;

constexpr int64_t kWalksPerThread = 64;

struct Walks {
  const void *rowptr, *col;
  const int64_t* start;
  int64_t *nodes, *places;
  int64_t num_walks, length, index_bytes, num_threads;
  uint64_t key;
  double p, q;
};

template <typename Index>
class Graph {
 public:
  explicit Graph(const Walks& a)
      : rowptr_(static_cast<const Index*>(a.rowptr)),
        col_(static_cast<const Index*>(a.col)),
        back_(1 / a.p),
        away_(1 / a.q),
        largest_(std::max({1 / a.p, 1.0, 1 / a.q})),
        is_biased_(a.p != 1 || a.q != 1) {}

  int64_t node(int64_t place) const { return col_[place]; }

  // Returns the place of the next step from a node, or -1. `before` is the node before, or -1.
  int64_t step(int64_t before, int64_t here, uint64_t stream) const {
    const int64_t begin = rowptr_[here], degree = rowptr_[here + 1] - begin;
    if (degree == 0) return -1;
    for (uint64_t attempt = 0;; attempt += 2) {
      const int64_t place = begin + static_cast<int64_t>(below(stream, attempt, degree));
      if (!is_biased_ || before < 0 || degree == 1) return place;
      if (unit(stream, attempt + 1) * largest_ < weight(before, col_[place])) return place;
    }
  }

 private:
  double weight(int64_t before, int64_t there) const {
    if (there == before) return back_;
    const Index *begin = col_ + rowptr_[before], *end = col_ + rowptr_[before + 1];
    return std::find(begin, end, static_cast<Index>(there)) == end ? away_ : 1.0;
  }

  const Index *rowptr_, *col_;
  const double back_, away_, largest_;
  const bool is_biased_;
};

template <typename Index>
void walk(const Walks& a) {
  const Graph<Index> graph(a);
#pragma omp parallel for schedule(static, kWalksPerThread) num_threads(static_cast<int>(a.num_threads)) \
    if (a.num_threads > 1 && a.num_walks > kWalksPerThread)
  for (int64_t i = 0; i < a.num_walks; ++i) {
    const uint64_t key = hash64(a.key, static_cast<uint64_t>(i));
    int64_t *nodes = a.nodes + i * (a.length + 1), *places = a.places + i * a.length;
    nodes[0] = a.start[i];
    for (int64_t step = 0; step < a.length; ++step) {
      const int64_t before = step ? nodes[step - 1] : -1, here = nodes[step];
      places[step] = graph.step(before, here, hash64(key, static_cast<uint64_t>(step)));
      nodes[step + 1] = places[step] < 0 ? here : graph.node(places[step]);
    }
  }
}

}  // namespace

POPGEO_API int64_t popgeo_random_walk(const Walks* a) {
  a->index_bytes == 4 ? walk<int32_t>(*a) : walk<int64_t>(*a);
  return 0;
}
