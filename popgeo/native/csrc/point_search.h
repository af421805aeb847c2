// Calls of the searches among points of any dimension; popgeo/ops/point_search.py packs the fields in this order.
#pragma once

#include <cstdint>
#include <vector>

#ifndef POPGEO_ISA
#define POPGEO_ISA baseline
#endif

namespace popgeo {

struct PointSearch {
  const void *x, *y;             // points to find, and centers of the search, row by row
  const int64_t *ptr_x, *ptr_y;  // first point of each graph, and the end of the last one
  int64_t* result;               // receives a pointer to a FoundPoints, and the number of pairs
  int64_t num_dims, num_graphs, slots, skips_same, is_double, num_threads;
  double limit;                  // the largest squared distance
};

// The pairs of consecutive centers: the number of neighbors of each center, and the neighbors.
struct FoundPoints {
  std::vector<std::vector<int64_t>> counts, rows;
};

struct FarthestPoints {
  const void* points;
  const int64_t *ptr, *out_ptr;  // first point, and first place in `out`, of each graph
  int64_t* out;                  // at the first place of each graph: its first point. Receives all chosen points.
  int64_t num_dims, num_graphs, is_double, num_threads;
};

struct PointKernels {
  void (*find)(const PointSearch&, FoundPoints&);
  void (*farthest)(const FarthestPoints&);
};

}  // namespace popgeo
