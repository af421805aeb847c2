// One interaction of SchNet's or PaiNN's kind over all edges: what the kernels receive, and the table of them that each
// instruction set has. Filters are functions of the distance, given by their values on a grid; an edge interpolates them
// between POINTS of these.
#pragma once

#include <cstdint>

#ifndef POPGEO_ISA
#define POPGEO_ISA baseline
#endif

namespace popgeo {

constexpr int64_t POINTS = 8;    // that a filter is interpolated between: a polynomial of degree 7
constexpr int64_t STENCIL = 11;  // points of the grid that a slope at one of them is made of
constexpr int64_t MAX_POINTS = 1 << 16;

// Python packs it as numbers of 64 bits (popgeo/ops/interaction_call.py). Features, sums, distances and directions are of
// one type, float or double; the table may be double while they are float.
struct InteractionCall {
  const int32_t* plan;
  const void* weights;                             // of the points, for each position of the plan [num_edges, POINTS]
  const void* table;                               // filters at the points of the grid [num_points, width]
  const void* x;                                   // features of the sources
  const void* direction;                           // from receiver to source, or null [num_edges, 3]
  const void* grad;                                // of the sums, in both backward passes
  const void *along_x, *along_r, *along_direction;  // in the second one: of the shapes of what they go along; or null
  void* out;                                       // the sums, or the gradient of x; or null
  void *grad_table, *grad_r, *grad_direction;      // or null
  void* grad_grad;                                 // in the second backward pass, or null
  void* workspace;
  int64_t num_edges, num_sources, num_rows, num_points, channels, half_list, is_second, is_double, table_is_double;
  int64_t num_threads;
  double spacing;  // of the grid
};

constexpr int64_t BLOCK_EDGES = 2048;  // whose nodes stay in cache while they are visited in order of distance

// Where the parts of a plan are in its one tensor of int32. Positions count the edges within the cutoff, block by block;
// within a block they ascend by the window of points that they are interpolated between.
struct InteractionPlan {
  int64_t num_edges, num_points;
  static constexpr int64_t HEADER = 5;
  int64_t num_windows() const { return num_points - POINTS + 1; }
  int64_t edges() const { return HEADER; }
  int64_t windows() const { return edges() + num_edges; }
  int64_t sources() const { return windows() + num_edges; }
  int64_t receivers() const { return sources() + num_edges; }
  int64_t size() const { return receivers() + num_edges; }
};

struct InteractionKernels {
  int64_t (*workspace)(const InteractionCall&);  // bytes that a call needs
  void (*run)(const InteractionCall&);           // any of the three passes: see `grad` and `is_second`
};

namespace POPGEO_ISA {
extern const InteractionKernels interaction_kernels;
}

}  // namespace popgeo
