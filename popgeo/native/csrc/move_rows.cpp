// The C functions that gather rows as they are, by an index or by pointers, after a check of the index.
#include <cstring>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "aligned.h"
#include "kernels.h"
#include "row_checks.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

constexpr int64_t PARALLEL_BYTES = 1 << 17;  // for fewer bytes a parallel region costs more than it saves

// Asks for pages of 2 MB for a large result, if Linux gives them on request: new memory costs a fault per page.
inline void ask_for_large_pages([[maybe_unused]] void* memory, [[maybe_unused]] size_t size) {
#ifdef __linux__
  constexpr uintptr_t page = 1 << 21;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + size) / page * page;
  if (size > 8 * page) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

struct GatherCall {
  const char* x;
  const int64_t* index;
  char* out;
  int64_t num_edges, num_rows, row_bytes, num_threads;
};

// Row e of the result is row index[e] of x.
EXPORT int64_t popgeo_gather(const GatherCall* packed) {
  const GatherCall call = *packed;
  popgeo::Aligned aligned;
  const int64_t* index = aligned(call.index, call.num_edges);
  if (aligned.failed()) return popgeo::NO_MEMORY;
  if (!popgeo::all_below(index, call.num_edges, call.num_rows)) return popgeo::BAD_INPUT;
  const size_t bytes = size_t(call.row_bytes);
  if (!bytes) return popgeo::OK;
#ifdef _OPENMP
  const bool parallel = call.num_threads > 1 && call.num_edges * call.row_bytes > PARALLEL_BYTES;
#pragma omp parallel for schedule(static) num_threads(int(call.num_threads)) if (parallel)
#endif
  for (int64_t e = 0; e < call.num_edges; ++e) memcpy(call.out + size_t(e) * bytes, call.x + size_t(index[e]) * bytes, bytes);
  return popgeo::OK;
}

struct GatherCsrCall {
  const char* x;
  const int64_t* indptr;
  char* out;
  int64_t num_edges, num_rows, row_bytes;
};

// Rows indptr[i] .. indptr[i + 1]) of the result are row i of x; those outside of all pointers are zero.
EXPORT int64_t popgeo_gather_csr(const GatherCsrCall* packed) {
  const GatherCsrCall call = *packed;
  if (!popgeo::climbs(call.indptr, call.num_rows, call.num_edges)) return popgeo::BAD_INPUT;
  const size_t bytes = size_t(call.row_bytes);
  if (!bytes || !call.num_edges) return popgeo::OK;
  ask_for_large_pages(call.out, size_t(call.num_edges) * bytes);
  const auto edge = [&](int64_t row) { return popgeo::number_at(call.indptr, row); };
  const int64_t first = edge(0), last = edge(call.num_rows);
  memset(call.out, 0, size_t(first) * bytes);
  for (int64_t row = 0; row < call.num_rows; ++row) {
    const char* from = call.x + size_t(row) * bytes;
    const int64_t begin = edge(row), end = edge(row + 1);
    // Copies of known sizes are a few instructions.
    if (bytes == 4) {
      for (int64_t e = begin; e < end; ++e) memcpy(call.out + size_t(e) * 4, from, 4);
      continue;
    }
    for (int64_t e = begin; e < end; ++e) {
      char* to = call.out + size_t(e) * bytes;
      size_t at = 0;
      for (; at + 64 <= bytes; at += 64) memcpy(to + at, from + at, 64);
      if (at < bytes) memcpy(to + at, from + at, bytes - at);
    }
  }
  memset(call.out + size_t(last) * bytes, 0, size_t(call.num_edges - last) * bytes);
  return popgeo::OK;
}
