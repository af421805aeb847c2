// Numbers of the nodes that a sample meets: the compiled twin of popgeo/sampling/node_table.py, equal to it bit for bit.
// Each function takes one structure of 64-bit numbers, in the order in which Python packs them.
#include <algorithm>
#include <cstdint>

#define POPGEO_API extern "C" __attribute__((visibility("default")))

namespace {

constexpr int64_t kAhead = 16;     // table entries fetched before they are needed
constexpr int64_t kFarAhead = 48;  // edges fetched before the table entries of their neighbors are

struct Nodes {  // the common arguments of the table functions
  int64_t *nodes, *trees;
  void* table;
  int64_t num_nodes, listed, bits, graph_nodes;
};

// An entry holds 1 more than the number of its node, so that empty memory is an empty table.
struct Narrow {
  uint32_t pair, number;
};
struct Wide {
  uint64_t pair, number;
};

template <typename Entry>
class Table {
 public:
  explicit Table(const Nodes& a)
      : a_(a), entries_(static_cast<Entry*>(a.table)), mask_((1ULL << a.bits) - 1), shift_(64 - static_cast<int>(a.bits)) {
    for (int64_t number = a.listed; number < a.num_nodes; ++number)
      find(pair_of(a.trees ? a.trees[number] : 0, a.nodes[number]), number, true);
  }

  uint64_t pair_of(int64_t tree, int64_t node) const {
    return static_cast<uint64_t>(tree) * static_cast<uint64_t>(a_.graph_nodes) + static_cast<uint64_t>(node);
  }

  void fetch(uint64_t pair) const { __builtin_prefetch(&entries_[start(pair)], 1); }

  // Returns the number of the pair; if it has none, returns `number`, and stores it if `insert`.
  int64_t find(uint64_t pair, int64_t number, bool insert) {
    for (uint64_t at = start(pair);; at = (at + 1) & mask_) {
      Entry& entry = entries_[at];
      if (entry.number == 0) {
        using Field = decltype(entry.number);
        if (insert) entry = {static_cast<Field>(pair), static_cast<Field>(number + 1)};
        return number;
      }
      if (entry.pair == pair) return static_cast<int64_t>(entry.number) - 1;
    }
  }

 private:
  uint64_t start(uint64_t pair) const { return pair * 0x9E3779B97F4A7C15ULL >> shift_; }

  const Nodes& a_;
  Entry* entries_;
  const uint64_t mask_;
  const int shift_;
};

struct NumberNodes {
  const void *col, *perm;
  const int64_t *places, *ptr;
  int64_t* nodes;
  void* table;
  int64_t *numbers, *rows, *edges;
  const int64_t* row_trees;
  int64_t* trees;
  int64_t num_rows, first, index_bytes, graph_nodes, num_nodes, listed, bits, wide;
};

template <typename Index, typename Entry>
int64_t number_nodes(const NumberNodes& a) {
  const Index* col = static_cast<const Index*>(a.col);
  const Index* perm = static_cast<const Index*>(a.perm);
  const Nodes nodes{a.nodes, a.trees, a.table, a.num_nodes, a.listed, a.bits, a.graph_nodes};
  Table<Entry> table(nodes);
  const int64_t num_edges = a.ptr[a.num_rows];
  for (int64_t row = 0; row < a.num_rows; ++row) std::fill(a.rows + a.ptr[row], a.rows + a.ptr[row + 1], a.first + row);
  const auto tree_of = [&](int64_t e) { return a.row_trees ? a.row_trees[a.rows[e] - a.first] : 0; };
  int64_t size = a.num_nodes;
  // Three places on the way through the edges: col is fetched for the farthest, the table's entry for the one between.
  for (int64_t e = -kFarAhead; e < num_edges; ++e) {
    if (const int64_t far = e + kFarAhead; far < num_edges) {
      __builtin_prefetch(col + a.places[far]);
      if (perm) __builtin_prefetch(perm + a.places[far]);
    }
    if (const int64_t middle = e + kAhead; middle >= 0 && middle < num_edges)
      table.fetch(table.pair_of(tree_of(middle), col[a.places[middle]]));
    if (e < 0) continue;
    const int64_t place = a.places[e], tree = tree_of(e), node = col[place];
    const int64_t number = table.find(table.pair_of(tree, node), size, true);
    if (number == size) {
      a.nodes[size] = node;
      if (a.trees) a.trees[size] = tree;
      ++size;
    }
    a.numbers[e] = number;
    a.edges[e] = perm ? static_cast<int64_t>(perm[place]) : place;
  }
  return size;
}

struct InducedEdges {
  const void *rowptr, *col;
  const int64_t* row_nodes;
  int64_t* nodes;
  void* table;
  const int64_t *time, *not_after, *row_trees;
  int64_t *trees, *numbers, *rows, *places;
  int64_t num_rows, index_bytes, graph_nodes, num_nodes, listed, bits, wide;
};

template <typename Index, typename Entry>
int64_t induced_edges(const InducedEdges& a) {
  const Index* rowptr = static_cast<const Index*>(a.rowptr);
  const Index* col = static_cast<const Index*>(a.col);
  const Nodes nodes{a.nodes, a.trees, a.table, a.num_nodes, a.listed, a.bits, a.graph_nodes};
  Table<Entry> table(nodes);
  int64_t total = 0;
  for (int64_t row = 0; row < a.num_rows; ++row) {
    const int64_t tree = a.row_trees ? a.row_trees[row] : 0, end = rowptr[a.row_nodes[row] + 1];
    for (int64_t place = rowptr[a.row_nodes[row]]; place < end; ++place) {
      if (a.time && a.time[place] > a.not_after[row]) break;
      if (place + kAhead < end) table.fetch(table.pair_of(tree, col[place + kAhead]));
      const int64_t number = table.find(table.pair_of(tree, col[place]), -1, false);
      if (number < 0) continue;
      if (a.places) a.places[total] = place, a.rows[total] = row, a.numbers[total] = number;
      ++total;
    }
  }
  return total;
}

}  // namespace

// Returns the number of nodes.
POPGEO_API int64_t popgeo_number_nodes(const NumberNodes* a) {
  if (a->wide) return a->index_bytes == 4 ? number_nodes<int32_t, Wide>(*a) : number_nodes<int64_t, Wide>(*a);
  return a->index_bytes == 4 ? number_nodes<int32_t, Narrow>(*a) : number_nodes<int64_t, Narrow>(*a);
}

// Returns the number of edges; writes them if there is memory for them.
POPGEO_API int64_t popgeo_induced_edges(const InducedEdges* a) {
  if (a->wide) return a->index_bytes == 4 ? induced_edges<int32_t, Wide>(*a) : induced_edges<int64_t, Wide>(*a);
  return a->index_bytes == 4 ? induced_edges<int32_t, Narrow>(*a) : induced_edges<int64_t, Narrow>(*a);
}
