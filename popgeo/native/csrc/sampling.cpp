// Sampling of large graphs: the compiled twins of functions in popgeo/sampling, equal to them bit for bit.
// Every function takes one structure of 64-bit numbers, in the order in which the Python file of its name packs them.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#define POPGEO_API extern "C" __attribute__((visibility("default")))

namespace {

enum Status : int64_t { OK = 0, NO_MEMORY = 1 };

constexpr int64_t kAhead = 16;         // rows or table entries fetched before they are needed
constexpr int64_t kFarAhead = 48;      // edges fetched before the table entries of their neighbours are
constexpr int64_t kRowsPerThread = 256;
constexpr int64_t kFew = 64;           // so many chosen places are searched one by one

// ---- random numbers: random_numbers.py -----------------------------------------------------------------------------

inline uint64_t hash64(uint64_t key, uint64_t i) {
  uint64_t z = key + (i + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

inline uint64_t below(uint64_t key, uint64_t i, uint64_t limit) {
  uint64_t draw = (hash64(key, i) >> 32) * limit;
  if ((draw & 0xFFFFFFFFULL) < limit) {  // seldom; only then can the draw be one of those that are too likely
    const uint64_t too_likely = ((1ULL << 32) - limit) % limit;
    while ((draw & 0xFFFFFFFFULL) < too_likely) draw = (hash64(key, i += 1ULL << 32) >> 32) * limit;
  }
  return draw >> 32;
}

inline double unit(uint64_t key, uint64_t i) {
  return (static_cast<double>(hash64(key, i) >> 11) + 0.5) * 0x1p-53;
}

double log_of(double x) {
  int exponent;
  double mantissa = std::frexp(x, &exponent);
  if (mantissa < 0.7071067811865476) mantissa *= 2.0, exponent -= 1;
  const double s = (mantissa - 1.0) / (mantissa + 1.0), z = s * s;
  constexpr int terms = 11;
  double series = 1.0 / (2 * terms + 1);
  for (int term = 2 * terms - 1; term > 0; term -= 2) series = series * z + 1.0 / term;
  return 2.0 * s * series + exponent * 0.6931471805599453;
}

// ---- compressing: compress.py --------------------------------------------------------------------------------------

struct Compress {
  const void *rows, *cols;
  void *rowptr, *col, *perm;
  int64_t num_edges, num_rows, in_bytes, out_bytes;
};

template <typename In, typename Out>
void compress(const Compress& a) {
  const In* rows = static_cast<const In*>(a.rows);
  const In* cols = static_cast<const In*>(a.cols);
  Out* rowptr = static_cast<Out*>(a.rowptr);
  Out* col = static_cast<Out*>(a.col);
  Out* perm = static_cast<Out*>(a.perm);
  std::fill_n(rowptr, a.num_rows + 1, Out{0});
  for (int64_t e = 0; e < a.num_edges; ++e) ++rowptr[rows[e] + 1];
  std::partial_sum(rowptr, rowptr + a.num_rows + 1, rowptr);
  for (int64_t e = 0; e < a.num_edges; ++e) {  // rowptr[i] moves to the end of row i, where row i + 1 starts
    if (e + kAhead < a.num_edges) {
      const Out next = rowptr[rows[e + kAhead]];
      __builtin_prefetch(col + next, 1);
      __builtin_prefetch(perm + next, 1);
    }
    const Out place = rowptr[rows[e]]++;
    col[place] = static_cast<Out>(cols[e]);
    perm[place] = static_cast<Out>(e);
  }
  for (int64_t row = a.num_rows; row > 0; --row) rowptr[row] = rowptr[row - 1];
  rowptr[0] = 0;
}

struct OrderRows {
  const void* rowptr;
  const int64_t* key;
  int64_t* order;
  int64_t num_rows, index_bytes;
};

template <typename Index>
void order_rows(const OrderRows& a) {
  const Index* rowptr = static_cast<const Index*>(a.rowptr);
  std::vector<std::pair<int64_t, int64_t>> row;
  for (int64_t i = 0; i < a.num_rows; ++i) {
    const int64_t begin = rowptr[i], end = rowptr[i + 1];
    std::iota(a.order + begin, a.order + end, begin);
    if (std::is_sorted(a.key + begin, a.key + end)) continue;
    row.clear();
    for (int64_t place = begin; place < end; ++place) row.emplace_back(a.key[place], place);
    std::sort(row.begin(), row.end());
    for (int64_t place = begin; place < end; ++place) a.order[place] = row[place - begin].second;
  }
}

// ---- drawing edges: draw.py ----------------------------------------------------------------------------------------

struct Draw {
  const void* rowptr;
  const int64_t *time, *not_after;
  const void* weight;
  const int64_t* nodes;
  int64_t *ptr, *places;
  int64_t num_nodes, first, index_bytes, weight_bytes, number, replace, last, num_threads;
  uint64_t key;
};

struct Row {
  int64_t begin, end;
};

template <typename Index>
Row eligible(const Draw& a, int64_t i) {
  const Index* start = static_cast<const Index*>(a.rowptr) + a.nodes[i];
  Row row{start[0], start[1]};
  if (a.time) row.end = std::upper_bound(a.time + row.begin, a.time + row.end, a.not_after[i]) - a.time;
  if (a.last && a.number >= 0) row.begin = std::max(row.begin, row.end - a.number);
  return row;
}

inline double weight_of(const Draw& a, int64_t place) {
  return a.weight_bytes == 4 ? static_cast<const float*>(a.weight)[place] : static_cast<const double*>(a.weight)[place];
}

template <typename Index>
int64_t count(const Draw& a, int64_t i) {
  const Row row = eligible<Index>(a, i);
  int64_t degree = row.end - row.begin;
  if (a.weight) {
    degree = 0;
    for (int64_t place = row.begin; place < row.end; ++place) degree += weight_of(a, place) > 0;
  }
  if (a.number < 0 || degree == 0) return degree;
  return a.replace ? a.number : std::min(degree, a.number);
}

// Memory that one thread works in.
struct Workspace {
  std::vector<uint64_t> taken;                        // a bit for each place of a row
  std::vector<std::pair<double, int64_t>> waits;      // and the place
  std::vector<double> summed;
  std::vector<int64_t> candidates;
};

void subset(Row row, int64_t number, uint64_t key, int64_t* out, Workspace& work) {
  const int64_t degree = row.end - row.begin;
  if (number > kFew) work.taken.assign((degree + 63) / 64, 0);
  for (int64_t i = 0; i < number; ++i) {
    const int64_t largest = degree - number + i;
    int64_t place = static_cast<int64_t>(below(key, i, largest + 1));
    if (number <= kFew) {
      bool taken = false;
      for (int64_t j = 0; j < i; ++j) taken |= out[j] == row.begin + place;
      if (taken) place = largest;
    } else {
      if (work.taken[place / 64] >> (place % 64) & 1) place = largest;
      work.taken[place / 64] |= 1ULL << (place % 64);
    }
    out[i] = row.begin + place;
  }
}

void weighted(const Draw& a, Row row, uint64_t key, int64_t* out, int64_t chosen, Workspace& work) {
  work.candidates.clear();
  for (int64_t place = row.begin; place < row.end; ++place)
    if (weight_of(a, place) > 0) work.candidates.push_back(place);
  if (a.number < 0 || (!a.replace && static_cast<int64_t>(work.candidates.size()) == chosen)) {
    std::copy(work.candidates.begin(), work.candidates.end(), out);
    return;
  }
  if (a.replace) {
    double sum = 0;
    work.summed.clear();
    for (const int64_t place : work.candidates) work.summed.push_back(sum += weight_of(a, place));
    for (int64_t i = 0; i < chosen; ++i) {
      const auto found = std::upper_bound(work.summed.begin(), work.summed.end() - 1, unit(key, i) * sum);
      out[i] = work.candidates[found - work.summed.begin()];
    }
    return;
  }
  work.waits.clear();
  for (const int64_t place : work.candidates)
    work.waits.emplace_back(-log_of(unit(key, place - row.begin)) / weight_of(a, place), place);
  std::partial_sort(work.waits.begin(), work.waits.begin() + chosen, work.waits.end());
  for (int64_t i = 0; i < chosen; ++i) out[i] = work.waits[i].second;
}

template <typename Index>
void choose(const Draw& a, int64_t i, Workspace& work) {
  int64_t* out = a.places + a.ptr[i];
  const int64_t chosen = a.ptr[i + 1] - a.ptr[i];
  if (chosen == 0) return;
  const Row row = eligible<Index>(a, i);
  const uint64_t key = hash64(a.key, static_cast<uint64_t>(a.first + i));
  if (a.weight) {
    weighted(a, row, key, out, chosen, work);
  } else if (a.replace && a.number >= 0) {
    for (int64_t j = 0; j < chosen; ++j) out[j] = row.begin + static_cast<int64_t>(below(key, j, row.end - row.begin));
  } else if (chosen == row.end - row.begin) {
    std::iota(out, out + chosen, row.begin);
  } else {
    subset(row, chosen, key, out, work);
  }
}

// Rows are shared out in blocks; what a row draws depends on its number alone, so it does not matter who does it.
template <typename Index, typename Each>
bool each_row(const Draw& a, Each each) {
  const Index* rowptr = static_cast<const Index*>(a.rowptr);
  const int64_t num_blocks = (a.num_nodes + kRowsPerThread - 1) / kRowsPerThread;
  bool failed = false;
#pragma omp parallel for schedule(dynamic) num_threads(static_cast<int>(a.num_threads)) \
    if (a.num_threads > 1 && num_blocks > 1) reduction(|| : failed)
  for (int64_t block = 0; block < num_blocks; ++block) {
    try {
      Workspace work;
      const int64_t end = std::min(a.num_nodes, (block + 1) * kRowsPerThread);
      for (int64_t i = block * kRowsPerThread; i < end; ++i) {
        if (i + kAhead < end) __builtin_prefetch(rowptr + a.nodes[i + kAhead]);
        each(i, work);
      }
    } catch (...) {
      failed = true;
    }
  }
  return failed;
}

template <typename Index>
int64_t count_edges(const Draw& a) {
  each_row<Index>(a, [&](int64_t i, Workspace&) { a.ptr[i + 1] = count<Index>(a, i); });
  a.ptr[0] = 0;
  std::partial_sum(a.ptr, a.ptr + a.num_nodes + 1, a.ptr);
  return a.ptr[a.num_nodes];
}

// ---- numbering nodes: node_table.py --------------------------------------------------------------------------------

struct Nodes {  // what the table functions have in common
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

  // The number of the pair; where it has none, `number`, which it is given if `insert`.
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

POPGEO_API int64_t popgeo_compress(const Compress* a) {
  if (a->in_bytes == 4) a->out_bytes == 4 ? compress<int32_t, int32_t>(*a) : compress<int32_t, int64_t>(*a);
  else a->out_bytes == 4 ? compress<int64_t, int32_t>(*a) : compress<int64_t, int64_t>(*a);
  return OK;
}

POPGEO_API int64_t popgeo_order_rows(const OrderRows* a) {
  try {
    a->index_bytes == 4 ? order_rows<int32_t>(*a) : order_rows<int64_t>(*a);
    return OK;
  } catch (const std::bad_alloc&) {
    return NO_MEMORY;
  }
}

// Writes where the edges of each row start; returns how many there are.
POPGEO_API int64_t popgeo_count_edges(const Draw* a) {
  return a->index_bytes == 4 ? count_edges<int32_t>(*a) : count_edges<int64_t>(*a);
}

POPGEO_API int64_t popgeo_choose_edges(const Draw* a) {
  const bool failed =
      a->index_bytes == 4
          ? each_row<int32_t>(*a, [&](int64_t i, Workspace& work) { choose<int32_t>(*a, i, work); })
          : each_row<int64_t>(*a, [&](int64_t i, Workspace& work) { choose<int64_t>(*a, i, work); });
  return failed ? NO_MEMORY : OK;
}

// Returns how many nodes there are now.
POPGEO_API int64_t popgeo_number_nodes(const NumberNodes* a) {
  if (a->wide) return a->index_bytes == 4 ? number_nodes<int32_t, Wide>(*a) : number_nodes<int64_t, Wide>(*a);
  return a->index_bytes == 4 ? number_nodes<int32_t, Narrow>(*a) : number_nodes<int64_t, Narrow>(*a);
}

// Returns how many edges there are; writes them where there is memory for them.
POPGEO_API int64_t popgeo_induced_edges(const InducedEdges* a) {
  if (a->wide) return a->index_bytes == 4 ? induced_edges<int32_t, Wide>(*a) : induced_edges<int64_t, Wide>(*a);
  return a->index_bytes == 4 ? induced_edges<int32_t, Narrow>(*a) : induced_edges<int64_t, Narrow>(*a);
}
