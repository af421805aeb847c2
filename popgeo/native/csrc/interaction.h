// One interaction of SchNet's or PaiNN's kind over all edges: what the kernels are given, and the table of them that each
// instruction set has. Filters are made from distances, block by block of edges, and their messages are summed at the
// receivers.
#pragma once

#include <cstdint>

#ifndef POPGEO_ISA
#define POPGEO_ISA baseline
#endif

namespace popgeo {

constexpr int64_t BLOCK_EDGES = 128;  // whose filters are made at once: what they need stays in the second cache
constexpr int64_t SECOND_EDGES = 64;  // of a block where everything also changes, which needs twice as much for each
constexpr int64_t GROUP = 8;          // rows of a result that share one span of what is summed
constexpr int64_t MAX_LAYERS = 4;
constexpr int64_t FACTORS = 4;        // what an edge of its own has for each way, and one for the alignment
constexpr int64_t MAX_PARTIALS = 16;  // sums of weights' gradients that are made apart, for any number of threads

enum Activation : int64_t { SHIFTED_SOFTPLUS = 0, SOFTPLUS = 1, SILU = 2, RELU = 3, TANH = 4, SIGMOID = 5 };

// Where edges have directions, messages are scalars and vectors (arXiv:2102.03150, eq. 7 and 8): sections of as many
// channels each stand side by side in a filter (for the scalars, for vectors that are sent, for those along the edge), in
// a source's features (scalars, three axes of vectors, what is sent along the edge) and in a result (scalars, three axes).
constexpr int64_t FILTER_SECTIONS = 3, FEATURE_SECTIONS = 5, RESULT_SECTIONS = 4;

struct Layer {
  const float *weight, *bias;     // [out, in]; [out] or null
  float *grad_weight, *grad_bias;  // of the same shapes; null where nobody asks
  int64_t in, out;
};

// Python packs it as so many numbers of 64 bits (popgeo/ops/interaction_call.py).
struct InteractionCall {
  const int32_t* plan;
  const float* x;          // [num_sources, channels]
  const float* grad;       // of the sums, in the backward pass [num_rows, channels]
  float* out;              // the sums, or the gradient of x
  float* filters;          // envelope included, in the plan's order, or as `keeps_slopes` says [num_edges, padded(channels)]
  const float* expansion;  // distances [num_edges] where there are centres of Gaussians, else rows [num_edges, in]
  const float* centres;    // [in] or null
  const float* envelope;   // [num_edges] or null
  const float* direction;  // from receiver to source; turned around for what goes the other way [num_edges, 3] or null
  float *grad_expansion, *grad_envelope, *grad_direction;  // or null
  float* workspace;
  // In the second backward pass, which is the derivative of the first one's results along these; or null.
  const float *along_x, *along_expansion, *along_envelope, *along_direction;  // of the shapes of what they go along
  float* grad_grad;                                         // the gradient of `grad`, or null [num_rows, channels]
  int64_t num_edges, num_sources, num_rows, half_list, activation, num_layers, num_threads, is_second;
  int64_t keeps_slopes;  // whether filters stand beside their slopes, without envelopes: rows of both, side by side
  double width;  // what the square of the distance from a centre is multiplied with
  Layer layers[MAX_LAYERS];
};

// Where the parts of a plan stand in its one tensor of int32. Positions count the edges that take part, in the order in
// which their filters are made; a row's arrivals are pairs of a position and the node at the other end.
struct InteractionPlan {
  int64_t num_edges, num_sources, num_rows;
  static constexpr int64_t HEADER = 4;
  int64_t edges() const { return HEADER; }
  int64_t sources() const { return edges() + num_edges; }
  int64_t receivers() const { return sources() + num_edges; }
  int64_t receiver_rowptr() const { return receivers() + num_edges; }
  int64_t receiver_pairs() const { return receiver_rowptr() + num_rows + 1; }
  int64_t source_rowptr() const { return receiver_pairs() + 2 * num_edges; }
  int64_t source_pairs() const { return source_rowptr() + num_sources + 1; }
  int64_t size() const { return source_pairs() + 2 * num_edges; }
};

// Whether each edge of a plan stands for its twin, too, which runs in the opposite direction over the same distance: then
// the twins stand after the edges.
inline bool joins_twins(const int32_t* plan) { return plan && plan[1] < 0; }

// Rows start on lines of memory, an odd number of lines apart, so that a column of them does not crowd one part of a cache.
inline int64_t padded(int64_t channels) {
  const int64_t lines = (channels + 15) / 16;
  return 16 * (lines + (lines + 1) % 2);
}

inline int64_t num_blocks(int64_t num_active, int64_t block_edges) { return (num_active + block_edges - 1) / block_edges; }

inline int64_t num_partials(int64_t num_active) {
  const int64_t wanted = (num_blocks(num_active, BLOCK_EDGES) + 3) / 4;
  return wanted < 1 ? 1 : wanted > MAX_PARTIALS ? MAX_PARTIALS : wanted;
}

struct InteractionKernels {
  int64_t (*workspace)(const InteractionCall&);  // floats that a call needs, in either direction
  void (*forward)(const InteractionCall&);
  void (*backward)(const InteractionCall&);
  void (*second)(const InteractionCall&);  // the backward pass of the backward pass
};

namespace POPGEO_ISA {
extern const InteractionKernels interaction_kernels;
}

}  // namespace popgeo
