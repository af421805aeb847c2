// Partitions of a large graph: the compiled twins of `stream` and `contract` of popgeo/sampling/multilevel.py.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#define POPGEO_API extern "C" __attribute__((visibility("default")))

namespace {

using Int = std::int64_t;

// The weight of one node's edges to each label; only labels with an edge are visited.
class Joined {
 public:
  explicit Joined(Int num_labels) : weight_(num_labels, 0) {}

  void add(Int label, Int weight) {
    if (weight_[label] == 0) labels.push_back(label);
    weight_[label] += weight;
  }
  Int operator[](Int label) const { return weight_[label]; }
  void clear() {
    for (Int label : labels) weight_[label] = 0;
    labels.clear();
  }

  std::vector<Int> labels;  // in the order in which they were met

 private:
  std::vector<Int> weight_;
};

}  // namespace

POPGEO_API std::int64_t popgeo_partition_stream(const Int* rowptr, const Int* col, const Int* edge_weight,
                                                const Int* node_weight, const Int* order, Int* labels, Int* weights,
                                                Int num_ordered, Int num_labels, Int capacity, Int least) {
  Joined joined(num_labels);
  Int moved = 0;
  for (Int at = 0; at < num_ordered; ++at) {
    const Int node = order[at], own = labels[node], weight = node_weight[node];
    joined.clear();
    for (Int i = rowptr[node]; i < rowptr[node + 1]; ++i)
      if (labels[col[i]] >= 0) joined.add(labels[col[i]], edge_weight[i]);
    const bool must_leave = own < 0 || weights[own] > capacity;
    if (!must_leave && weights[own] - weight < least) continue;
    Int best = must_leave ? -1 : own, score = must_leave ? -1 : joined[own];
    for (Int label : joined.labels) {
      if (label == own || weights[label] + weight > capacity) continue;
      const Int value = own < 0 ? joined[label] * (capacity - weights[label]) : joined[label];
      const bool lighter = best >= 0 && weights[label] + weight < weights[best] - (best == own ? weight : 0);
      if (value > score || (value == score && lighter)) best = label, score = value;
    }
    if (best < 0) {
      best = std::min_element(weights, weights + num_labels) - weights;
      // If no part has room, heavy coarse nodes stay where they are; a finer level corrects it.
      if (own >= 0 && weights[best] + weight > capacity) best = own;
    }
    if (best == own) continue;
    if (own >= 0) weights[own] -= weight;
    weights[best] += weight;
    labels[node] = best;
    ++moved;
  }
  return moved;
}

POPGEO_API std::int64_t popgeo_partition_contract(const Int* rowptr, const Int* col, const Int* edge_weight,
                                                  const Int* labels, Int num_nodes, Int num_coarse, Int* out_rowptr,
                                                  Int* out_col, Int* out_weight) {
  std::vector<Int> start(num_coarse + 1, 0), members(num_nodes);
  for (Int node = 0; node < num_nodes; ++node) ++start[labels[node] + 1];
  std::partial_sum(start.begin(), start.end(), start.begin());
  std::vector<Int> next(start.begin(), start.end() - 1);
  for (Int node = 0; node < num_nodes; ++node) members[next[labels[node]]++] = node;
  Joined joined(num_coarse);
  Int used = 0;
  out_rowptr[0] = 0;
  for (Int coarse = 0; coarse < num_coarse; ++coarse) {
    joined.clear();
    for (Int at = start[coarse]; at < start[coarse + 1]; ++at)
      for (Int i = rowptr[members[at]]; i < rowptr[members[at] + 1]; ++i)
        if (labels[col[i]] != coarse) joined.add(labels[col[i]], edge_weight[i]);
    std::sort(joined.labels.begin(), joined.labels.end());
    for (Int label : joined.labels) out_col[used] = label, out_weight[used] = joined[label], ++used;
    out_rowptr[coarse + 1] = used;
  }
  return used;
}
