// The C functions of gather and scatter: they check indices, make plans, and call the kernels of the newest instruction set
// that the processor has. Functions allocate memory only for plans and for inputs at odd addresses; none throws.
#include <cstdlib>
#include <cstring>

#include "aligned.h"
#include "kernels.h"
#include "row_checks.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace popgeo {

#ifdef POPGEO_HAS_V3
namespace v3 {
extern const Kernels kernels;
}
#endif
#ifdef POPGEO_HAS_V4
namespace v4 {
extern const Kernels kernels;
}
#endif

enum Isa : int64_t { BASELINE = 0, V3 = 1, V4 = 2 };

inline int64_t newest_isa() {
#ifdef POPGEO_HAS_V4
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return V4;
#endif
#ifdef POPGEO_HAS_V3
  // Processors with AVX2 have F16C too; some versions of Clang have no name for it.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return V3;
#endif
  return BASELINE;
}

int64_t chosen_isa = newest_isa();

// Rows that are narrower than the vectors of an instruction set use the next older instruction set.
inline const Kernels& kernels([[maybe_unused]] int64_t channels) {
#ifdef POPGEO_HAS_V4
  if (chosen_isa == V4 && channels >= 16) return v4::kernels;
#endif
#ifdef POPGEO_HAS_V3
  if (chosen_isa >= V3 && channels >= 8) return v3::kernels;
#endif
  return POPGEO_ISA::kernels;
}

// Checks that rowptr climbs within the edges and perm names only edges, so that kernels stay within their arrays. A
// kernel that writes one row per edge also needs every edge to occur.
inline bool is_safe(const Plan& plan, bool meets_all) {
  const auto* rowptr = reinterpret_cast<const uint32_t*>(plan.rowptr);
  const auto* perm = reinterpret_cast<const uint32_t*>(plan.perm);
  const uint32_t num_edges = uint32_t(plan.num_edges), last = rowptr[plan.num_rows];
  uint32_t outside = last | (num_edges - last);
  for (int64_t row = 0; row < plan.num_rows; ++row)
    outside |= rowptr[row] | (num_edges - rowptr[row]) | (rowptr[row + 1] - rowptr[row]);
  if (perm)
    for (int64_t e = 0; e < plan.num_edges; ++e) outside |= perm[e] | (num_edges - 1 - perm[e]);
  return int32_t(outside) >= 0 && (!meets_all || (rowptr[0] == 0 && last == num_edges));
}

enum Order : int64_t { UNSORTED = 0, SORTED = 1, OUTSIDE = 2 };

// Sorts the edges by row, by a stable counting sort. For a sorted index perm stays unchanged.
inline Order sort(const int64_t* index, int64_t num_edges, int64_t num_rows, int32_t* rowptr, int32_t* perm) {
  if (!all_below(index, num_edges, num_rows)) return OUTSIDE;
  memset(rowptr, 0, sizeof(int32_t) * size_t(num_rows + 1));
  bool descends = false;
  for (int64_t e = 1; e < num_edges; ++e) descends |= index[e] < index[e - 1];
  if (!descends) {
    for (int64_t e = 0; e < num_edges; ++e) rowptr[index[e] + 1] = int32_t(e + 1);
    for (int64_t row = 0; row < num_rows; ++row)
      if (rowptr[row + 1] < rowptr[row]) rowptr[row + 1] = rowptr[row];
    return SORTED;
  }
  for (int64_t e = 0; e < num_edges; ++e) ++rowptr[index[e]];
  int32_t before = 0;
  for (int64_t row = 0; row <= num_rows; ++row) {
    const int32_t count = rowptr[row];
    rowptr[row] = before;
    before += count;
  }
  for (int64_t e = 0; e < num_edges; ++e) perm[rowptr[index[e]]++] = int32_t(e);
  memmove(rowptr + 1, rowptr, sizeof(int32_t) * size_t(num_rows));  // rowptr[i] is the start of row i + 1 here
  rowptr[0] = 0;
  return UNSORTED;
}

// Runs body on the given plan after the check that it is safe; without a plan, on a new plan of the index.
template <class Body>
inline int64_t with_plan(const int64_t* index, Plan plan, Body body, bool meets_all = false) {
  if (plan.rowptr) {
    if (!is_safe(plan, meets_all)) return BAD_INPUT;
    body(plan);
    return OK;
  }
  auto* memory = static_cast<int32_t*>(malloc(sizeof(int32_t) * size_t(plan.num_rows + 1 + plan.num_edges)));
  if (!memory) return NO_MEMORY;
  int32_t* perm = memory + plan.num_rows + 1;
  const Order order = sort(index, plan.num_edges, plan.num_rows, memory, perm);
  if (order != OUTSIDE) {
    plan.rowptr = memory;
    plan.perm = order == SORTED ? nullptr : perm;
    body(plan);
  }
  free(memory);
  return order == OUTSIDE ? BAD_INPUT : OK;
}

}  // namespace popgeo

using popgeo::Aligned;
using popgeo::Plan;

// Bytes of an element, by the number of its type.
static int64_t size_of(int64_t dtype) {
  constexpr int64_t sizes[] = {4, 8, 2, 2, 4, 8};
  return sizes[dtype];
}

// Chooses the instruction set of the kernels: 0 baseline, 1 x86-64-v3 (AVX2), 2 x86-64-v4 (AVX-512), others the newest.
EXPORT int64_t popgeo_choose_isa(int64_t isa) {
  const int64_t newest = popgeo::newest_isa();
  popgeo::chosen_isa = isa >= 0 && isa < newest ? isa : newest;
  return popgeo::chosen_isa;
}

// The first row of each tile and the number of rows: num_tiles + 1 numbers.
EXPORT void popgeo_tile_starts(const int32_t* rowptr, int64_t num_edges, int64_t num_rows, int64_t num_tiles,
                               int64_t* starts) {
  const Plan plan{rowptr, nullptr, num_edges, num_rows, num_tiles, 1};
  for (int64_t tile = 0; tile <= num_tiles; ++tile) starts[tile] = popgeo::tile_start(plan, tile, num_tiles);
}

// Functions that operations call take their arguments as one structure of 64-bit numbers: ctypes takes longer to pass
// fourteen arguments than a small kernel takes to run, and a compiled step keeps the structure from run to run.
static_assert(sizeof(void*) == 8, "pointers are packed as numbers of 64 bits");

struct PlanCall {
  const int64_t* index;
  int32_t *rowptr, *perm;
  int32_t* head;  // whether the index is sorted, so that perm is not filled, and the number of rows; null fills perm
  int64_t num_edges, num_rows;
};

EXPORT int64_t popgeo_plan(const PlanCall* packed) {
  const PlanCall call = *packed;
  Aligned aligned;
  const int64_t* index = aligned(call.index, call.num_edges);
  if (aligned.failed()) return popgeo::NO_MEMORY;
  const popgeo::Order order = popgeo::sort(index, call.num_edges, call.num_rows, call.rowptr, call.perm);
  if (order == popgeo::OUTSIDE) return popgeo::BAD_INPUT;
  if (call.head)
    call.head[0] = order == popgeo::SORTED, call.head[1] = int32_t(call.num_rows);
  else if (order == popgeo::SORTED)
    for (int64_t e = 0; e < call.num_edges; ++e) call.perm[e] = int32_t(e);
  return popgeo::OK;
}

struct SumCall {
  int64_t dtype;
  const void* src;
  const int64_t* index;
  const int32_t* rowptr;
  const int32_t* perm;
  void* out;
  int64_t num_edges, num_rows, channels, num_tiles, num_threads;
};

// Chooses between sums edge by edge and row by row, which give the same bits, as benchmarks/scatter_gather.py measured.
// Row by row is faster for wide rows, which stay in registers, and for edges in the order of the rows.
static bool goes_by_edge(int64_t dtype, const Plan& plan, int64_t channels) {
  const bool is_half = dtype == 2 || dtype == 3;  // summed in float32 and rounded once, so row by row
  if (is_half || plan.num_tiles > 0 || popgeo::is_parallel(plan, channels)) return false;
  if (plan.rowptr && !plan.perm) return plan.num_edges < 2 * plan.num_rows;
  if (plan.rowptr && channels == 1) return plan.num_edges < 8 * plan.num_rows;
  return channels <= 64 || plan.num_edges < 4 * plan.num_rows;
}

// Extremes edge by edge keep the edge of each entry in memory instead of registers. This is faster if the rows are in no
// order and the memory stays in the cache, or if rows have few edges.
static bool extremum_goes_by_edge(int64_t dtype, const Plan& plan, int64_t channels) {
  const bool is_half = dtype == 2 || dtype == 3;
  if (is_half || plan.num_tiles > 0 || popgeo::is_parallel(plan, channels)) return false;
  if (plan.rowptr && !plan.perm) return false;
  return plan.num_rows * channels <= 1 << 17 || plan.num_edges < 4 * plan.num_rows;
}

EXPORT int64_t popgeo_scatter_sum(const SumCall* packed) {
  SumCall call = *packed;
  Aligned aligned;
  call.src = aligned(call.src, call.num_edges * call.channels, size_of(call.dtype));
  call.index = aligned(call.index, call.num_edges);
  call.rowptr = aligned(call.rowptr, call.num_rows + 1);
  call.perm = aligned(call.perm, call.num_edges);
  if (aligned.failed()) return popgeo::NO_MEMORY;
  const popgeo::Kernels& kernels = popgeo::kernels(call.channels);
  const Plan plan{call.rowptr, call.perm, call.num_edges, call.num_rows, call.num_tiles, call.num_threads};
  if (call.index && goes_by_edge(call.dtype, plan, call.channels)) {
    if (!popgeo::all_below(call.index, call.num_edges, call.num_rows)) return popgeo::BAD_INPUT;
    kernels.add(false, call.dtype, call.index, call.num_edges, call.num_rows, call.src, call.out, call.channels);
    return popgeo::OK;
  }
  return popgeo::with_plan(call.index, plan, [&](const Plan& safe) {
    kernels.sum(call.dtype, safe, call.src, call.out, call.channels);
  });
}

struct SegmentCall {
  int64_t how;  // 0: the sum; 1: the smallest entry; 2: the largest; 3: the mean of float32 or float64
  int64_t dtype;
  const void* src;
  const int64_t* indptr;
  void* out;
  int64_t* arg;  // edge of each extreme
  int64_t num_edges, num_rows, channels, num_threads;
};

// Divides the sums of rows by their numbers of edges.
template <class T>
static void divide(T* out, const Plan& plan, int64_t channels) {
  for (int64_t row = 0; row < plan.num_rows; ++row) {
    const int32_t count = plan.rowptr[row + 1] - plan.rowptr[row];
    for (int64_t c = 0; count > 1 && c < channels; ++c) out[row * channels + c] /= T(count);
  }
}

// Row i is a reduction of the edges indptr[i] .. indptr[i + 1]).
EXPORT int64_t popgeo_segment_reduce(const SegmentCall* packed) {
  const SegmentCall call = *packed;
  if (!popgeo::climbs(call.indptr, call.num_rows, call.num_edges)) return popgeo::BAD_INPUT;
  Aligned aligned;
  const void* src = aligned(call.src, call.num_edges * call.channels, size_of(call.dtype));
  auto* rowptr = static_cast<int32_t*>(malloc(sizeof(int32_t) * size_t(call.num_rows + 1)));
  if (aligned.failed() || !rowptr) return free(rowptr), popgeo::NO_MEMORY;
  for (int64_t row = 0; row <= call.num_rows; ++row) rowptr[row] = int32_t(popgeo::number_at(call.indptr, row));
  const Plan plan{rowptr, nullptr, call.num_edges, call.num_rows, 0, call.num_threads};
  const popgeo::Kernels& kernels = popgeo::kernels(call.channels);
  if (call.how == 1 || call.how == 2)
    kernels.extremum(call.how == 2, call.dtype, plan, src, call.out, call.arg, call.channels);
  else
    kernels.sum(call.dtype, plan, src, call.out, call.channels);
  if (call.how == 3 && call.dtype == 0) divide(static_cast<float*>(call.out), plan, call.channels);
  if (call.how == 3 && call.dtype == 1) divide(static_cast<double*>(call.out), plan, call.channels);
  free(rowptr);
  return popgeo::OK;
}

// Computes products edge by edge, for all types but half precision.
EXPORT int64_t popgeo_scatter_mul(const SumCall* packed) {
  SumCall call = *packed;
  Aligned aligned;
  call.src = aligned(call.src, call.num_edges * call.channels, size_of(call.dtype));
  call.index = aligned(call.index, call.num_edges);
  if (aligned.failed()) return popgeo::NO_MEMORY;
  if (!popgeo::all_below(call.index, call.num_edges, call.num_rows)) return popgeo::BAD_INPUT;
  popgeo::kernels(call.channels)
      .add(true, call.dtype, call.index, call.num_edges, call.num_rows, call.src, call.out, call.channels);
  return popgeo::OK;
}

struct ExtremumCall {
  int64_t largest, dtype;
  const void* src;
  const int64_t* index;
  const int32_t *rowptr, *perm;
  void* out;
  int64_t* arg;
  int64_t num_edges, num_rows, channels, num_tiles, num_threads;
};

EXPORT int64_t popgeo_scatter_extremum(const ExtremumCall* packed) {
  ExtremumCall call = *packed;
  Aligned aligned;
  call.src = aligned(call.src, call.num_edges * call.channels, size_of(call.dtype));
  call.index = aligned(call.index, call.num_edges);
  call.rowptr = aligned(call.rowptr, call.num_rows + 1);
  call.perm = aligned(call.perm, call.num_edges);
  if (aligned.failed()) return popgeo::NO_MEMORY;
  const popgeo::Kernels& kernels = popgeo::kernels(call.channels);
  const bool largest = call.largest != 0;
  const Plan plan{call.rowptr, call.perm, call.num_edges, call.num_rows, call.num_tiles, call.num_threads};
  if (!call.index || !extremum_goes_by_edge(call.dtype, plan, call.channels))
    return popgeo::with_plan(call.index, plan, [&](const Plan& safe) {
      kernels.extremum(largest, call.dtype, safe, call.src, call.out, call.arg, call.channels);
    });
  if (!popgeo::all_below(call.index, call.num_edges, call.num_rows)) return popgeo::BAD_INPUT;
  const int64_t size = call.num_rows * call.channels;
  auto* from = static_cast<int32_t*>(malloc(sizeof(int32_t) * size_t(size + 1)));
  if (!from) return popgeo::NO_MEMORY;
  kernels.extremum_by_edge(largest, call.dtype, call.index, call.num_edges, call.num_rows, call.src, call.out, from,
                           call.channels);
  for (int64_t i = 0; i < size; ++i) call.arg[i] = from[i];
  free(from);
  return popgeo::OK;
}

struct CfconvCall {
  int64_t dtype;
  const void *x, *w;
  const int64_t *src, *dst;
  const int32_t *rowptr, *perm;  // of dst
  void* out;
  int64_t num_edges, num_sources, num_rows, channels, num_tiles, num_threads;
};

EXPORT int64_t popgeo_cfconv(const CfconvCall* packed) {
  CfconvCall call = *packed;
  Aligned aligned;
  call.x = aligned(call.x, call.num_sources * call.channels, size_of(call.dtype));
  call.w = aligned(call.w, call.num_edges * call.channels, size_of(call.dtype));
  call.src = aligned(call.src, call.num_edges);
  call.dst = aligned(call.dst, call.num_edges);
  call.rowptr = aligned(call.rowptr, call.num_rows + 1);
  call.perm = aligned(call.perm, call.num_edges);
  if (aligned.failed()) return popgeo::NO_MEMORY;
  if (!popgeo::all_below(call.src, call.num_edges, call.num_sources)) return popgeo::BAD_INPUT;
  return popgeo::with_plan(
      call.dst, {call.rowptr, call.perm, call.num_edges, call.num_rows, call.num_tiles, call.num_threads},
      [&](const Plan& plan) {
        popgeo::kernels(call.channels).cfconv(call.dtype, plan, call.x, call.w, call.src, call.out, call.channels);
      });
}

struct CfconvBackwardCall {
  int64_t dtype;
  const void *grad, *x, *w;
  const int64_t *src, *dst;
  const int32_t *rowptr, *perm;  // of src
  void *grad_x, *grad_w;
  int64_t num_edges, num_sources, num_rows, channels, num_tiles, num_threads;
};

EXPORT int64_t popgeo_cfconv_backward(const CfconvBackwardCall* packed) {
  CfconvBackwardCall call = *packed;
  Aligned aligned;
  call.grad = aligned(call.grad, call.num_rows * call.channels, size_of(call.dtype));
  call.x = aligned(call.x, call.num_sources * call.channels, size_of(call.dtype));
  call.w = aligned(call.w, call.num_edges * call.channels, size_of(call.dtype));
  call.src = aligned(call.src, call.num_edges);
  call.dst = aligned(call.dst, call.num_edges);
  call.rowptr = aligned(call.rowptr, call.num_sources + 1);
  call.perm = aligned(call.perm, call.num_edges);
  if (aligned.failed()) return popgeo::NO_MEMORY;
  if (!popgeo::all_below(call.dst, call.num_edges, call.num_rows)) return popgeo::BAD_INPUT;
  return popgeo::with_plan(
      call.src, {call.rowptr, call.perm, call.num_edges, call.num_sources, call.num_tiles, call.num_threads},
      [&](const Plan& plan) {
        popgeo::kernels(call.channels)
            .cfconv_backward(call.dtype, plan, call.grad, call.x, call.w, call.dst, call.grad_x, call.grad_w,
                             call.channels);
      },
      true);
}
