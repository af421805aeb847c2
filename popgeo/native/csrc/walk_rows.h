// The kernels' loops over rows: threads share tiles of rows, and registers hold blocks of vectors along a row.
// Included by files that are compiled once per instruction set.
#pragma once

#include "denormals.h"
#include "kernels.h"
#include "vectors.h"

namespace popgeo {
namespace POPGEO_ISA {

constexpr int64_t PREFETCH_FLOATS = 2048;  // distance of the prefetch, within 4 to 32 edges
constexpr int64_t FETCHED_BYTES = 8 << 20;  // up to this size the processor itself prefetches rows in order

template <class Tile>
inline void for_each_tile(const Plan& plan, int64_t channels, Tile tile) {
  const bool parallel = is_parallel(plan, channels);
  const int64_t asked = plan.num_tiles < plan.num_rows ? plan.num_tiles : plan.num_rows;  // more would have no rows
  const int64_t num_tiles = asked > 0 ? asked : parallel ? 8 * plan.num_threads : 1;
  if (num_tiles == 1) return tile(int64_t(0), plan.num_rows);
  const uint64_t of_caller = denormals();
#ifdef _OPENMP
#pragma omp parallel num_threads(int(plan.num_threads)) if (parallel)
#endif
  {
    const Denormals same(of_caller);
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 1)
#endif
    for (int64_t t = 0; t < num_tiles; ++t) tile(tile_start(plan, t, num_tiles), tile_start(plan, t + 1, num_tiles));
  }
}

inline int64_t edges_ahead(int64_t channels) {
  const int64_t ahead = PREFETCH_FLOATS / (channels > 0 ? channels : 1);
  return ahead < 4 ? 4 : ahead > 32 ? 32 : ahead;
}

// Rows that are read again soon are fetched into the first cache (KEEP 3), those that pass once into the second (2).
template <int BYTES, int KEEP>
inline void prefetch(const void* row) {
#pragma GCC unroll 16
  for (int offset = 0; offset < BYTES; offset += 64) __builtin_prefetch(static_cast<const char*>(row) + offset, 0, KEEP);
}

// COUNT vectors of a row: side by side, except that the last one ends where the row ends and so may overlap the one
// before it. Both then compute the same values for the channels that they share.
template <class T, int COUNT>
struct Columns {
  using Lane = typename Sum<T>::type;
  using Vec = typename Vector<Lane>::type;
  static constexpr int count = COUNT;
  static constexpr int bytes = COUNT * Vector<Lane>::lanes * sizeof(T);
  int64_t first, last;  // the last one is counted from the first
  int64_t operator[](int i) const { return i + 1 < COUNT ? i * Vector<Lane>::lanes : last; }
};

inline bool is_one_block(int64_t vectors) { return vectors <= 8 || vectors == 13 || vectors == 16; }

// Calls body(Columns) for each block of columns. Thirteen vectors and what is computed with them are as many as sixteen
// registers can hold, but rows of sixteen are still better read at once; most rows take blocks of eight.
template <class T, class Body>
inline void for_each_block(int64_t channels, Body body) {
  constexpr int64_t lanes = Vector<typename Sum<T>::type>::lanes;
  int64_t first = 0;
  int64_t left = (channels + lanes - 1) / lanes;
  for (; !is_one_block(left); left -= 8, first += 8 * lanes) body(Columns<T, 8>{first, 7 * lanes});
  const int64_t last = channels - lanes - first;
  switch (left) {
    case 1: return body(Columns<T, 1>{first, last});
    case 2: return body(Columns<T, 2>{first, last});
    case 3: return body(Columns<T, 3>{first, last});
    case 4: return body(Columns<T, 4>{first, last});
    case 5: return body(Columns<T, 5>{first, last});
    case 6: return body(Columns<T, 6>{first, last});
    case 7: return body(Columns<T, 7>{first, last});
    case 8: return body(Columns<T, 8>{first, last});
    case 13: return body(Columns<T, 13>{first, last});
    case 16: return body(Columns<T, 16>{first, last});
  }
}

// Calls body(row, Columns) for the blocks of each row. If a row is one block, its size is looked at once for all rows.
template <class T, class Body>
inline void for_each_row(int64_t begin, int64_t end, int64_t channels, Body body) {
  constexpr int64_t lanes = Vector<typename Sum<T>::type>::lanes;
  const int64_t together = is_one_block((channels + lanes - 1) / lanes) ? end - begin : 1;
  for (int64_t first = begin; first < end; first += together)
    for_each_block<T>(channels, [=](auto columns) {
      for (int64_t row = first; row < first + together; ++row) body(row, columns);
    });
}

// Walks a row that is narrower than a vector, channel by channel.
template <class T>
inline bool is_narrow(int64_t channels) {
  return channels < Vector<typename Sum<T>::type>::lanes;
}

// Returns how many of `count` numbers come before the next line of memory.
template <class T>
inline int64_t to_line(const T* data, int64_t count) {
  const int64_t before = int64_t((64 - reinterpret_cast<uintptr_t>(data) % 64) % 64 / sizeof(T));
  return before < count ? before : count;
}

}  // namespace POPGEO_ISA
}  // namespace popgeo
