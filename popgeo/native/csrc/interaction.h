// One interaction of SchNet or PaiNN over all edges: the arguments of the kernels, and the table of kernels that each
// instruction set has. Filters are functions of the distance, given by their values on a grid; an edge interpolates
// between POINTS values.
#pragma once

#include <cstdint>

#ifndef POPGEO_ISA
#define POPGEO_ISA baseline
#endif

namespace popgeo {

constexpr int64_t POINTS = 8;    // points for the interpolation of a filter, by a polynomial of degree 7
constexpr int64_t STENCIL = 11;  // points for the slope at one point
constexpr int64_t MAX_POINTS = 1 << 16;

// Python packs it as numbers of 64 bits (popgeo/ops/interaction_call.py). Features, sums, distances and directions have
// one type, float or double; with float the table may still be double.
struct InteractionCall {
  const int32_t* plan;
  const void* weights;                             // of the points, for each position of the plan [num_edges, POINTS]
  const void* table;                               // filters at the points of the grid [num_points, width]
  const void* x;                                   // features of the sources
  const void* direction;                           // from receiver to source, or null [num_edges, 3]
  const void* grad;                                // of the sums, in both backward passes
  const void *along_x, *along_r, *along_direction;  // gradients of grad_x, grad_r, ... in the second pass; or null
  void* out;                                       // the sums, or the gradient of x; or null
  void *grad_table, *grad_r, *grad_direction;      // or null
  void* grad_grad;                                 // in the second backward pass, or null
  void* workspace;
  int64_t num_edges, num_sources, num_rows, num_points, channels, half_list, is_second, is_double, table_is_double;
  int64_t num_threads;
  double spacing;  // of the grid
};

constexpr int64_t BLOCK_EDGES = 2048;  // edges of a block; their nodes stay in the cache

// The places of a plan's parts in its tensor of int32. Positions count the edges within the cutoff, block by block; within
// a block they ascend by their window of points.
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
