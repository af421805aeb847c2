// Neighbors drawn from a large graph: the compiled twin of popgeo/sampling/draw.py, equal to it bit for bit. Each
// function takes one structure of 64-bit numbers, in the order in which Python packs them.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "random_numbers.h"

#define POPGEO_API extern "C" __attribute__((visibility("default")))

namespace {

using namespace popgeo;

enum Status : int64_t { OK = 0, NO_MEMORY = 1 };

constexpr int64_t kAhead = 16;  // rows fetched before they are needed
constexpr int64_t kRowsPerThread = 256;
constexpr int64_t kFew = 64;  // up to this number chosen places are searched one by one

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

// The working memory of one thread.
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

// Threads share blocks of rows. The draws of a row depend on its number alone, so any thread may make them.
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

}  // namespace

// Writes the start of each row's edges; returns the number of edges.
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
