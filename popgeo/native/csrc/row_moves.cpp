// Rows at an index: rows that are read from a table, written to a table, or added to its rows in the order of the index.
#include <cstdint>
#include <cstring>

#include "plain.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace popgeo {
namespace {

enum Code : int64_t { READ, WRITE, ADD };

constexpr int64_t FOR_THREADS = 1 << 21;  // bytes; fewer are moved by one thread

// Rows of `width` elements, in `num_outer` tables. The table of a write or a sum first becomes a copy of `first_bytes` at
// `first`, or zeros without `first`. Steps are in bytes.
struct RowMoves {
  int64_t code, type, width, num_outer;
  int64_t index, index_type, index_step, num_indices, num_rows, is_cyclic, left_out;
  int64_t from, from_outer, from_row, to, to_outer, to_row;
  int64_t first, first_bytes;

  int64_t number(int64_t i) const {
    const int64_t at = i * index_step;
    const int64_t row = index_type == INT64 ? reinterpret_cast<const int64_t*>(index)[at]
                                            : reinterpret_cast<const int32_t*>(index)[at];
    return is_cyclic && row < 0 ? row + num_rows : row;
  }

  bool fits() const {
    const int64_t bytes = type_size(type);
    if (from % bytes || to % bytes || index % type_size(index_type)) return false;
    for (int64_t i = 0; i < num_indices; ++i)
      if (uint64_t(number(i)) >= uint64_t(num_rows)) return false;
    return true;
  }
};

// Copies rows of BYTES, or of `bytes` where BYTES is 0.
template <int64_t BYTES>
void copy_rows(const RowMoves& moves, bool reads, int64_t bytes) {
  const int64_t count = moves.num_indices;
  for (int64_t outer = 0; outer < moves.num_outer; ++outer) {
    const int64_t from = moves.from + outer * moves.from_outer, to = moves.to + outer * moves.to_outer;
#ifdef _OPENMP
#pragma omp parallel for schedule(static) if (reads && count * bytes > FOR_THREADS)
#endif
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = moves.number(i);
      memcpy(reinterpret_cast<char*>(to + (reads ? i : row) * moves.to_row),
             reinterpret_cast<const char*>(from + (reads ? row : i) * moves.from_row), size_t(BYTES ? BYTES : bytes));
    }
  }
}

void copy_rows_of(const RowMoves& moves) {
  const int64_t bytes = moves.width * type_size(moves.type);
  switch (bytes) {
    case 1: return copy_rows<1>(moves, moves.code == READ, bytes);
    case 4: return copy_rows<4>(moves, moves.code == READ, bytes);
    case 8: return copy_rows<8>(moves, moves.code == READ, bytes);
    default: return copy_rows<0>(moves, moves.code == READ, bytes);
  }
}

template <class T, class W>
void add_rows(const RowMoves& moves) {
  for (int64_t outer = 0; outer < moves.num_outer; ++outer)
    for (int64_t i = 0; i < moves.num_indices; ++i) {
      const int64_t row = moves.number(i);
      if (row == moves.left_out) continue;
      const T* from = reinterpret_cast<const T*>(moves.from + outer * moves.from_outer + i * moves.from_row);
      T* to = reinterpret_cast<T*>(moves.to + outer * moves.to_outer + row * moves.to_row);
      for (int64_t c = 0; c < moves.width; ++c) to[c] = T(W(to[c]) + W(from[c]));
    }
}

}  // namespace
}  // namespace popgeo

// Returns 1, and changes nothing, if an index is out of range or an address is not aligned.
EXPORT int64_t popgeo_row_moves(const popgeo::RowMoves* given) {
  using namespace popgeo;
  const RowMoves& moves = *given;
  if (!moves.fits()) return 1;
  void *to = reinterpret_cast<void*>(moves.to), *first = reinterpret_cast<void*>(moves.first);
  if (!first) memset(to, 0, size_t(moves.first_bytes));
  if (first && first != to) memcpy(to, first, size_t(moves.first_bytes));
  if (moves.code != ADD) return copy_rows_of(moves), 0;
  switch (moves.type) {
    case FLOAT: return add_rows<float, float>(moves), 0;
    case DOUBLE: return add_rows<double, double>(moves), 0;
    case INT64: return add_rows<int64_t, uint64_t>(moves), 0;
    default: return add_rows<int32_t, uint32_t>(moves), 0;
  }
}
