// A large graph by rows: the compiled twin of popgeo/sampling/compress.py, equal to it bit for bit. Each function takes
// one structure of 64-bit numbers, in the order in which Python packs them.
#include <algorithm>
#include <cstdint>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#define POPGEO_API extern "C" __attribute__((visibility("default")))

namespace {

enum Status : int64_t { OK = 0, NO_MEMORY = 1 };

constexpr int64_t kAhead = 16;  // places fetched before they are needed

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
