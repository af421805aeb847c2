// Searches among points of any dimension: neighbors by a tree, and farthest points. Neighbors of equal distance are
// ordered by their numbers, so results depend neither on the tree nor on the number of threads.
#include "vectorise.h"

#include "point_search.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace popgeo {
namespace POPGEO_ISA {
namespace {

using Int = int64_t;

constexpr Int kLeaf = 24;         // a node with more points is divided
constexpr Int kTreeDims = 12;     // with more dimensions a tree skips too few points, and all points are one leaf
constexpr Int kBlock = 64;        // distances that are computed at once
constexpr Int kQueries = 256;     // centers that one thread takes at once
constexpr Int kSorted = 48;       // up to this number of slots neighbors stay sorted; more are a heap

template <typename T>
class Trees {
 public:
  explicit Trees(const PointSearch& a) : a_(a), x_(static_cast<const T*>(a.x)), y_(static_cast<const T*>(a.y)) {
    const Int num_x = a.ptr_x[a.num_graphs];
    ids_.reserve(num_x);
    for (Int g = 0; g < a.num_graphs; ++g) {
      const Int begin = static_cast<Int>(ids_.size());
      for (Int i = a.ptr_x[g]; i < a.ptr_x[g + 1]; ++i)
        if (is_finite(x_ + i * a.num_dims)) ids_.push_back(i);
      roots_.push_back(begin == static_cast<Int>(ids_.size()) ? -1 : build(begin, static_cast<Int>(ids_.size())));
    }
    points_.resize(ids_.size() * a.num_dims);
    for (const Node& node : nodes_)
      if (node.left < 0) {  // dimension after dimension, so that distances are computed by vectors
        const Int size = node.end - node.begin;
        T* to = points_.data() + node.begin * a.num_dims;
        for (Int i = 0; i < size; ++i)
          for (Int d = 0; d < a.num_dims; ++d) to[d * size + i] = x_[ids_[node.begin + i] * a.num_dims + d];
      }
  }

  void find(FoundPoints& found) const {
    const Int num_y = a_.ptr_y[a_.num_graphs], num_blocks = (num_y - a_.ptr_y[0] + kQueries - 1) / kQueries;
    found.counts.resize(num_blocks);
    found.rows.resize(num_blocks);
#pragma omp parallel for schedule(dynamic) num_threads(static_cast<int>(a_.num_threads)) if (a_.num_threads > 1)
    for (Int block = 0; block < num_blocks; ++block) {
      const Int begin = a_.ptr_y[0] + block * kQueries, end = std::min(begin + kQueries, num_y);
      Int graph = std::upper_bound(a_.ptr_y, a_.ptr_y + a_.num_graphs + 1, begin) - a_.ptr_y - 1;
      std::vector<Int>&counts = found.counts[block], &rows = found.rows[block];
      Query query;
      for (Int i = begin; i < end; ++i) {
        while (i >= a_.ptr_y[graph + 1]) ++graph;
        query.at = y_ + i * a_.num_dims;
        query.own = a_.skips_same ? i : -1;
        query.worst = static_cast<T>(a_.limit);
        query.best.clear();
        if (roots_[graph] >= 0 && a_.slots > 0 && is_finite(query.at)) visit(roots_[graph], query);
        if (a_.slots > kSorted) std::sort(query.best.begin(), query.best.end());
        counts.push_back(static_cast<Int>(query.best.size()));
        for (const auto& one : query.best) rows.push_back(one.second);
      }
    }
  }

 private:
  struct Node {
    Int begin, end, left, right;  // left < 0: a leaf
  };
  struct Query {
    const T* at;
    Int own;
    T worst;                               // a larger distance is not needed
    std::vector<std::pair<T, Int>> best;  // sorted, or with many slots a heap once all are taken
  };

  bool is_finite(const T* point) const {
    bool finite = true;
    for (Int d = 0; d < a_.num_dims; ++d) finite &= std::isfinite(point[d]);
    return finite;
  }

  Int build(Int begin, Int end) {
    const Int self = static_cast<Int>(nodes_.size()), dims = a_.num_dims;
    nodes_.push_back({begin, end, -1, -1});
    boxes_.resize(boxes_.size() + 2 * dims);
    T *low = boxes_.data() + 2 * dims * self, *high = low + dims;
    std::copy_n(x_ + ids_[begin] * dims, dims, low);
    std::copy_n(low, dims, high);
    for (Int i = begin + 1; i < end; ++i)
      for (Int d = 0; d < dims; ++d) {
        const T value = x_[ids_[i] * dims + d];
        low[d] = std::min(low[d], value);
        high[d] = std::max(high[d], value);
      }
    if (end - begin <= kLeaf || dims > kTreeDims || dims == 0) return self;
    Int widest = 0;
    for (Int d = 1; d < dims; ++d)
      if (high[d] - low[d] > high[widest] - low[widest]) widest = d;
    if (!(high[widest] > low[widest])) return self;  // all points are equal
    const Int middle = begin + (end - begin) / 2;
    std::nth_element(ids_.begin() + begin, ids_.begin() + middle, ids_.begin() + end,
                     [&](Int a, Int b) { return x_[a * dims + widest] < x_[b * dims + widest]; });
    const Int left = build(begin, middle), right = build(middle, end);
    nodes_[self].left = left;
    nodes_[self].right = right;
    return self;
  }

  // A bound of the distances of all points in a node's box. Rounding never makes it larger than one of them.
  T bound(Int node, const Query& query) const {
    const T *low = boxes_.data() + 2 * a_.num_dims * node, *high = low + a_.num_dims;
    T sum = 0;
    for (Int d = 0; d < a_.num_dims; ++d) {
      const T nearest = std::min(std::max(query.at[d], low[d]), high[d]), along = nearest - query.at[d];
      sum += along * along;
    }
    return sum;
  }

  void visit(Int at, Query& query) const {
    const Node& node = nodes_[at];
    if (node.left < 0) {
      scan(node, query);
      return;
    }
    Int near = node.left, far = node.right;
    T to_near = bound(near, query), to_far = bound(far, query);
    if (to_far < to_near) std::swap(near, far), std::swap(to_near, to_far);
    if (to_near <= query.worst) visit(near, query);
    if (to_far <= query.worst) visit(far, query);
  }

  void scan(const Node& node, Query& query) const {
    const Int size = node.end - node.begin;
    const T* points = points_.data() + node.begin * a_.num_dims;
    T distances[kBlock];
    for (Int first = 0; first < size; first += kBlock) {
      const Int count = std::min(kBlock, size - first);
      std::fill_n(distances, count, T(0));
      for (Int d = 0; d < a_.num_dims; ++d) {
        const T own = query.at[d];
        const T* along = points + d * size + first;
        POPGEO_VECTORISE
        for (Int i = 0; i < count; ++i) distances[i] += (along[i] - own) * (along[i] - own);
      }
      for (Int i = 0; i < count; ++i)
        if (distances[i] <= query.worst) offer(distances[i], ids_[node.begin + first + i], query);
    }
  }

  void offer(T distance, Int row, Query& query) const {
    auto& best = query.best;
    if (row == query.own) return;
    const std::pair<T, Int> one(distance, row);
    const bool is_full = static_cast<Int>(best.size()) == a_.slots, is_last = static_cast<Int>(best.size()) + 1 == a_.slots;
    if (a_.slots <= kSorted) {
      if (!is_full) best.push_back(one);
      else if (!(one < best.back())) return;
      auto at = best.end() - 1;
      for (; at != best.begin() && one < *(at - 1); --at) *at = *(at - 1);
      *at = one;
      if (is_full || is_last) query.worst = best.back().first;
      return;
    }
    if (!is_full) {
      best.push_back(one);
      if (!is_last) return;
      std::make_heap(best.begin(), best.end());
    } else {
      if (!(one < best.front())) return;
      std::pop_heap(best.begin(), best.end());
      best.back() = one;
      std::push_heap(best.begin(), best.end());
    }
    query.worst = best.front().first;
  }

  const PointSearch& a_;
  const T *x_, *y_;
  std::vector<Int> ids_, roots_;
  std::vector<Node> nodes_;
  std::vector<T> boxes_, points_;
};

// Chooses the points of one graph: each is the first point that is farthest from all points before it.
template <typename T, typename Bits>
void choose_farthest(const T* points, Int num_points, Int dims, Int first, Int* out, Int count) {
  constexpr Int kPart = 256;
  std::vector<T> along(num_points * dims), distances(num_points, std::numeric_limits<T>::infinity());
  for (Int i = 0; i < num_points; ++i)
    for (Int d = 0; d < dims; ++d) along[d * num_points + i] = points[i * dims + d];
  Int last = out[0] - first;
  for (Int turn = 1; turn < count; ++turn) {
    Bits largest = -1;
    Int chosen = 0;
    for (Int from = 0; from < num_points; from += kPart) {
      const Int size = std::min(kPart, num_points - from);
      T squares[kPart] = {};
      for (Int d = 0; d < dims; ++d) {
        const T *at = along.data() + d * num_points + from, own = along[d * num_points + last];
        POPGEO_VECTORISE
        for (Int i = 0; i < size; ++i) squares[i] += (at[i] - own) * (at[i] - own);
      }
      T* least = distances.data() + from;
      Bits bits[kPart];
      POPGEO_VECTORISE
      for (Int i = 0; i < size; ++i) least[i] = squares[i] < least[i] ? squares[i] : least[i];
      std::memcpy(bits, least, size * sizeof(T));  // distances are ordered as their bits: none is negative
      Bits most = -1;
      for (Int i = 0; i < size; ++i) most = std::max(most, bits[i]);
      if (most > largest) {
        largest = most;
        chosen = from + (std::find(bits, bits + size, most) - bits);
      }
    }
    out[turn] = first + (last = chosen);
  }
}

template <typename T, typename Bits>
void farthest(const FarthestPoints& a) {
#pragma omp parallel for schedule(dynamic) num_threads(static_cast<int>(a.num_threads)) if (a.num_threads > 1)
  for (Int g = 0; g < a.num_graphs; ++g)
    if (a.out_ptr[g + 1] > a.out_ptr[g])
      choose_farthest<T, Bits>(static_cast<const T*>(a.points) + a.ptr[g] * a.num_dims, a.ptr[g + 1] - a.ptr[g],
                               a.num_dims, a.ptr[g], a.out + a.out_ptr[g], a.out_ptr[g + 1] - a.out_ptr[g]);
}

void find(const PointSearch& a, FoundPoints& found) {
  if (a.is_double) Trees<double>(a).find(found);
  else Trees<float>(a).find(found);
}

void choose(const FarthestPoints& a) {
  if (a.is_double) farthest<double, int64_t>(a);
  else farthest<float, int32_t>(a);
}

}  // namespace

extern const PointKernels point_kernels;
const PointKernels point_kernels = {find, choose};

}  // namespace POPGEO_ISA
}  // namespace popgeo
