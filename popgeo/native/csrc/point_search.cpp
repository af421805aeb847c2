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

// A neighbor as one number: its squared distance, which is never negative and so ordered as its bits, then its row.
template <typename T>
struct Neighbor;
template <>
struct Neighbor<float> {
  using Key = uint64_t;
  using Bits = uint32_t;
};
template <>
struct Neighbor<double> {
  using Key = unsigned __int128;
  using Bits = uint64_t;
};

// D is the number of dimensions, or 0 if only the call knows it.
template <typename T, Int D>
class Trees {
 public:
  explicit Trees(const PointSearch& a) : a_(a), dims_(D ? D : a.num_dims), x_(static_cast<const T*>(a.x)), y_(static_cast<const T*>(a.y)) {
    const Int num_x = a.ptr_x[a.num_graphs];
    ids_.reserve(num_x);
    for (Int g = 0; g < a.num_graphs; ++g) {
      const Int begin = static_cast<Int>(ids_.size());
      for (Int i = a.ptr_x[g]; i < a.ptr_x[g + 1]; ++i)
        if (is_finite(x_ + i * dims())) ids_.push_back(i);
      roots_.push_back(begin == static_cast<Int>(ids_.size()) ? -1 : build(begin, static_cast<Int>(ids_.size())));
    }
    points_.resize(ids_.size() * dims());
    for (const Node& node : nodes_)
      if (node.left < 0) {  // dimension after dimension, so that distances are computed by vectors
        const Int size = node.end - node.begin;
        T* to = points_.data() + node.begin * dims();
        for (Int i = 0; i < size; ++i)
          for (Int d = 0; d < dims(); ++d) to[d * size + i] = x_[ids_[node.begin + i] * dims() + d];
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
      if (a_.slots <= kSorted) query.best.resize(a_.slots);
      for (Int i = begin; i < end; ++i) {
        while (i >= a_.ptr_y[graph + 1]) ++graph;
        query.at = y_ + i * dims();
        query.own = a_.skips_same ? i : -1;
        query.worst = static_cast<T>(a_.limit);
        query.count = 0;
        if (roots_[graph] >= 0 && a_.slots > 0 && is_finite(query.at)) visit(roots_[graph], query);
        if (a_.slots > kSorted) std::sort(query.best.begin(), query.best.begin() + query.count);
        counts.push_back(query.count);
        for (Int at = 0; at < query.count; ++at) rows.push_back(static_cast<Int>(static_cast<Bits>(query.best[at])));
      }
    }
  }

 private:
  struct Node {
    Int begin, end, left, right;  // left < 0: a leaf
  };
  using Key = typename Neighbor<T>::Key;
  using Bits = typename Neighbor<T>::Bits;
  struct Query {
    const T* at;
    Int own, count;
    T worst;                // a larger distance is not needed
    std::vector<Key> best;  // `count` keys: sorted, or with many slots a heap once all are taken
  };

  static Key key(T distance, Int row) {
    Bits bits;
    std::memcpy(&bits, &distance, sizeof(T));
    return Key(bits) << (8 * sizeof(T)) | static_cast<Bits>(row);
  }
  static T distance(Key key) {
    const Bits bits = static_cast<Bits>(key >> (8 * sizeof(T)));
    T result;
    std::memcpy(&result, &bits, sizeof(T));
    return result;
  }

  Int dims() const { return D ? D : dims_; }

  bool is_finite(const T* point) const {
    bool finite = true;
    for (Int d = 0; d < dims(); ++d) finite &= std::isfinite(point[d]);
    return finite;
  }

  Int build(Int begin, Int end) {
    const Int self = static_cast<Int>(nodes_.size()), dims = this->dims();
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
    const T *low = boxes_.data() + 2 * dims() * node, *high = low + dims();
    T sum = 0;
    for (Int d = 0; d < dims(); ++d) {
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
    const T* points = points_.data() + node.begin * dims();
    T distances[kBlock];
    for (Int first = 0; first < size; first += kBlock) {
      const Int count = std::min(kBlock, size - first);
      std::fill_n(distances, count, T(0));
      for (Int d = 0; d < dims(); ++d) {
        const T own = query.at[d];
        const T* along = points + d * size + first;
        POPGEO_VECTORISE
        for (Int i = 0; i < count; ++i) distances[i] += (along[i] - own) * (along[i] - own);
      }
      for (Int i = 0; i < count; ++i)
        if (distances[i] <= query.worst) offer(distances[i], ids_[node.begin + first + i], query);
    }
  }

  void offer(T near, Int row, Query& query) const {
    if (row == query.own) return;
    const Key one = key(near, row);
    Key* best = query.best.data();
    Int num_kept = query.count;
    if (a_.slots <= kSorted) {
      if (num_kept == a_.slots && one >= best[--num_kept]) return;  // the last one is replaced
      Int at = num_kept;
      for (; at > 0 && best[at - 1] > one; --at) best[at] = best[at - 1];
      best[at] = one;
      query.count = num_kept + 1;
      if (query.count == a_.slots) query.worst = distance(best[a_.slots - 1]);
      return;
    }
    if (num_kept < a_.slots) {
      if (num_kept == static_cast<Int>(query.best.size())) query.best.push_back(one);
      else best[num_kept] = one;
      if (++query.count < a_.slots) return;
      std::make_heap(query.best.begin(), query.best.end());
    } else {
      if (one >= best[0]) return;
      std::pop_heap(query.best.begin(), query.best.end());
      query.best.back() = one;
      std::push_heap(query.best.begin(), query.best.end());
    }
    query.worst = distance(query.best.front());
  }

  const PointSearch& a_;
  const Int dims_;
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

template <typename T>
void find_among(const PointSearch& a, FoundPoints& found) {
  if (a.num_dims == 2) Trees<T, 2>(a).find(found);
  else if (a.num_dims == 3) Trees<T, 3>(a).find(found);
  else Trees<T, 0>(a).find(found);
}

void find(const PointSearch& a, FoundPoints& found) {
  if (a.is_double) find_among<double>(a, found);
  else find_among<float>(a, found);
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
