// The search for the neighbors of nodes within their graphs: the compiled twin of `_define` of
// popgeo/ops/neighbor_search.py, equal to it bit for bit.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "kernels.h"
#include "row_checks.h"

#define POPGEO_API extern "C" __attribute__((visibility("default")))

namespace {

using Int = int64_t;

enum Form : Int { KNN = 0, PAIRS = 1, RADIUS = 2 };

struct Search {  // popgeo/ops/neighbor_search.py packs these fields in this order
  const void* pos;
  const Int* batch;
  const uint8_t* real;  // null: all nodes are real
  Int* others;          // [num_nodes, slots]; RADIUS: neighbors and centres [2, slots]
  uint8_t* near;        // [num_nodes, slots]; RADIUS: how many there are, one int64
  Int num_nodes, num_dims, slots, width, num_graphs, form, is_double, num_threads;
  double cutoff;
};

constexpr Int kByCells = 500;       // graphs of more nodes are searched by cells
constexpr Int kParallelNodes = 4096;  // for fewer nodes a parallel region costs more than it saves

template <typename Real>
using Found = std::vector<std::pair<Real, Int>>;  // squared distance and number of each near node

// The finite nodes of one large graph in three dimensions, by cells as wide as the cutoff.
template <typename Real>
class Cells {
 public:
  Cells(const Search& a, Int first, Int end) : pos_(static_cast<const Real*>(a.pos)) {
    double high[3];
    for (int d = 0; d < 3; ++d) low_[d] = std::numeric_limits<double>::infinity(), high[d] = -low_[d];
    for (Int i = first; i < end; ++i)
      if (is_finite(i))
        for (int d = 0; d < 3; ++d) {
          low_[d] = std::min<double>(low_[d], pos_[3 * i + d]);
          high[d] = std::max<double>(high[d], pos_[3 * i + d]);
        }
    // A little wider than the cutoff, because pairs at exactly the cutoff count; and no more cells than nodes.
    const Int most = end - first;
    for (int d = 0; d < 3; ++d) {
      const double wanted = (high[d] - low_[d]) / (a.cutoff * 1.0001);
      num_[d] = wanted > 1 ? static_cast<Int>(std::min(wanted, static_cast<double>(most))) : 1;
    }
    while (num_[0] * num_[1] > most || num_[0] * num_[1] * num_[2] > most) {
      Int& longest = *std::max_element(num_, num_ + 3);
      longest = (longest + 1) / 2;
    }
    for (int d = 0; d < 3; ++d) per_unit_[d] = num_[d] > 1 ? num_[d] / (high[d] - low_[d]) : 0.0;
    start_.assign(num_[0] * num_[1] * num_[2] + 1, 0);
    nodes_.resize(end - first);
    for (Int i = first; i < end; ++i)
      if (is_finite(i)) ++start_[cell_of(i) + 1];
    for (size_t c = 1; c < start_.size(); ++c) start_[c] += start_[c - 1];
    std::vector<Int> next(start_.begin(), start_.end() - 1);
    for (Int i = first; i < end; ++i)
      if (is_finite(i)) nodes_[next[cell_of(i)]++] = i;
  }

  bool is_finite(Int i) const {
    return std::isfinite(pos_[3 * i]) && std::isfinite(pos_[3 * i + 1]) && std::isfinite(pos_[3 * i + 2]);
  }

  // Calls `visit` with each node in the cell of node `i` and around it.
  template <typename Visit>
  void around(Int i, Visit visit) const {
    Int at[3];
    for (int d = 0; d < 3; ++d) at[d] = along(i, d);
    for (Int x = std::max<Int>(at[0] - 1, 0); x < std::min(at[0] + 2, num_[0]); ++x)
      for (Int y = std::max<Int>(at[1] - 1, 0); y < std::min(at[1] + 2, num_[1]); ++y) {
        const Int row = (x * num_[1] + y) * num_[2];
        const Int from = start_[row + std::max<Int>(at[2] - 1, 0)], to = start_[row + std::min(at[2] + 2, num_[2])];
        for (Int k = from; k < to; ++k) visit(nodes_[k]);
      }
  }

 private:
  Int along(Int i, int d) const {
    return std::min(static_cast<Int>((pos_[3 * i + d] - low_[d]) * per_unit_[d]), num_[d] - 1);
  }
  Int cell_of(Int i) const { return (along(i, 0) * num_[1] + along(i, 1)) * num_[2] + along(i, 2); }

  const Real* pos_;
  double low_[3], per_unit_[3];
  Int num_[3];
  std::vector<Int> start_, nodes_;
};

template <typename Real>
class Searcher {
 public:
  explicit Searcher(const Search& a)
      : a_(a), pos_(static_cast<const Real*>(a.pos)), r2_(static_cast<Real>(a.cutoff * a.cutoff)) {
    graph_of_.resize(a.num_nodes);
    for (Int i = 0; i < a.num_nodes; ++i) {
      if (i == 0 || a.batch[i] != a.batch[i - 1]) starts_.push_back(i);
      graph_of_[i] = static_cast<Int>(starts_.size()) - 1;
    }
    starts_.push_back(a.num_nodes);
    cells_.assign(starts_.size(), -1);
    for (size_t g = 0; g + 1 < starts_.size(); ++g)
      if (a.num_dims == 3 && starts_[g + 1] - starts_[g] > kByCells && is_real(starts_[g])) {
        cells_[g] = static_cast<Int>(grids_.size());
        grids_.emplace_back(a, starts_[g], starts_[g + 1]);
      }
  }

  void run() {
    const bool parallel = a_.num_threads > 1 && a_.num_nodes >= kParallelNodes;
    counts_.assign(a_.form == RADIUS ? a_.num_nodes + 1 : 0, 0);
#pragma omp parallel num_threads(static_cast<int>(a_.num_threads)) if (parallel)
    {
      Found<Real> found;
#pragma omp for schedule(dynamic, 64)
      for (Int i = 0; i < a_.num_nodes; ++i) {
        if (a_.form == RADIUS) {
          search(i, found);
          counts_[i + 1] = static_cast<Int>(found.size());
        } else {
          fill(i, found);
        }
      }
      if (a_.form == RADIUS) {
#pragma omp single
        for (Int i = 0; i < a_.num_nodes; ++i) counts_[i + 1] += counts_[i];
#pragma omp for schedule(dynamic, 64)
        for (Int i = 0; i < a_.num_nodes; ++i) {
          if (counts_[i + 1] == counts_[i] || counts_[i] >= a_.slots) continue;
          search(i, found);
          Int at = counts_[i];
          for (const auto& one : found)
            if (at < a_.slots) a_.others[at] = one.second, a_.others[a_.slots + at++] = i;
        }
      }
    }
    if (a_.form == RADIUS) {
      const Int num_found = counts_[a_.num_nodes];
      for (Int at = num_found; at < a_.slots; ++at) a_.others[at] = a_.others[a_.slots + at] = a_.num_nodes - 1;
      std::memcpy(a_.near, &num_found, sizeof(num_found));
    }
  }

 private:
  bool is_real(Int i) const { return a_.real == nullptr || a_.real[i]; }

  Real squared(Int i, Int j) const {  // in the order in which torch adds squares
    Real sum = 0;
    for (Int d = 0; d < a_.num_dims; ++d) {
      const Real along = pos_[a_.num_dims * j + d] - pos_[a_.num_dims * i + d];
      sum += along * along;
    }
    return sum;
  }

  // Lists the near nodes of a node, by their numbers.
  void search(Int i, Found<Real>& found) const {
    found.clear();
    if (!is_real(i)) return;
    const Int graph = graph_of_[i], first = starts_[graph];
    const auto visit = [&](Int j) {
      if (j == i || !is_real(j)) return;
      const Real r2 = squared(i, j);
      if (r2 <= r2_) found.emplace_back(r2, j);
    };
    if (cells_[graph] < 0) {
      for (Int j = first; j < std::min(starts_[graph + 1], first + a_.width); ++j) visit(j);
      return;
    }
    const Cells<Real>& cells = grids_[cells_[graph]];
    if (!cells.is_finite(i)) return;
    cells.around(i, visit);
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  }

  void fill(Int i, Found<Real>& found) const {
    Int* others = a_.others + i * a_.slots;
    uint8_t* near = a_.near + i * a_.slots;
    std::fill(others, others + a_.slots, i);
    std::fill(near, near + a_.slots, 0);
    search(i, found);
    const Int graph = graph_of_[i], first = starts_[graph], size = starts_[graph + 1] - first, own = i - first;
    if (a_.form == KNN && a_.width - 1 > a_.slots) {  // more candidates than slots: the nearest first
      if (static_cast<Int>(found.size()) > a_.slots) {
        std::nth_element(found.begin(), found.begin() + a_.slots, found.end());
        found.resize(a_.slots);
      }
      std::sort(found.begin(), found.end());
      for (size_t at = 0; at < found.size(); ++at) others[at] = found[at].second, near[at] = 1;
      return;
    }
    for (const auto& one : found) {
      const Int place = one.second - first;
      Int at = place - (place > own);
      if (a_.form == PAIRS) {  // each pair once: see `_pairs` in Python
        const Int step = place > own ? place - own : place - own + size;
        if (2 * step > size || (2 * step == size && own >= step)) continue;
        at = step - 1;
      }
      if (at < a_.slots) others[at] = one.second, near[at] = 1;
    }
  }

  const Search& a_;
  const Real* pos_;
  const Real r2_;
  std::vector<Int> graph_of_, starts_, cells_, counts_;
  std::vector<Cells<Real>> grids_;
};

}  // namespace

POPGEO_API int64_t popgeo_near_nodes(const Search* a) {
  if (!popgeo::all_below(a->batch, a->num_nodes, a->num_graphs)) return popgeo::BAD_INPUT;
  try {
    if (a->is_double) Searcher<double>(*a).run();
    else Searcher<float>(*a).run();
  } catch (const std::bad_alloc&) {
    return popgeo::NO_MEMORY;
  }
  return popgeo::OK;
}
