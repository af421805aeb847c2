// The arguments of the kernels, and the table of kernels that each instruction set has.
#pragma once

#include <cstdint>

#ifndef POPGEO_ISA
#define POPGEO_ISA baseline
#endif

namespace popgeo {

enum Status : int64_t { OK = 0, BAD_INPUT = 1, NO_MEMORY = 2 };

// The edges of row i are perm[rowptr[i] .. rowptr[i + 1]), or rowptr[i] .. rowptr[i + 1] if perm is null.
struct Plan {
  const int32_t* rowptr;
  const int32_t* perm;
  int64_t num_edges, num_rows, num_tiles, num_threads;
};

struct Kernels {
  void (*add)(bool product, int64_t dtype, const int64_t* index, int64_t num_edges, int64_t num_rows, const void* src, void* out,
              int64_t channels);
  void (*sum)(int64_t dtype, const Plan&, const void* src, void* out, int64_t channels);
  void (*extremum)(bool largest, int64_t dtype, const Plan&, const void* src, void* out, int64_t* arg, int64_t channels);
  void (*extremum_by_edge)(bool largest, int64_t dtype, const int64_t* index, int64_t num_edges, int64_t num_rows,
                           const void* src, void* out, int32_t* from, int64_t channels);
  void (*cfconv)(int64_t dtype, const Plan&, const void* x, const void* w, const int64_t* src, void* out,
                 int64_t channels);
  void (*cfconv_backward)(int64_t dtype, const Plan&, const void* grad, const void* x, const void* w,
                          const int64_t* dst, void* grad_x, void* grad_w, int64_t channels);
};

// Returns the first row of a tile: the first row with at least t shares of all edges and rows before it.
static int64_t tile_start(const Plan& plan, int64_t tile, int64_t num_tiles) {
  if (tile == num_tiles) return plan.num_rows;
  const int64_t share = tile * (plan.num_edges + plan.num_rows) / num_tiles;
  int64_t low = 0, high = plan.num_rows;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (plan.rowptr[middle] + middle < share)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

constexpr int64_t PARALLEL_ELEMENTS = 32768;  // for fewer elements a parallel region costs more than it saves

static inline bool is_parallel(const Plan& plan, int64_t channels) {
  return plan.num_threads > 1 && (plan.num_edges + plan.num_rows) * channels > PARALLEL_ELEMENTS;
}

namespace POPGEO_ISA {
extern const Kernels kernels;
}

}  // namespace popgeo
