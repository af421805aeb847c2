// Interactions of SchNet's kind (arXiv:1706.08566), and PaiNN's of scalars and vectors (arXiv:2102.03150), forward and
// backward, in one pass over the edges.
//
// Blocks of edges that stay in cache go through expansion, filter network and envelope; of all this only the filters
// are written to memory. Each receiver then sums its messages in the order of the edges. The backward pass makes the
// layers within a block anew, and sums the weights' gradients in a number of parts that does not depend on the threads.
// So the bits are the same for any number of threads and every instruction set that has fused multiply-adds.
//
// The file is compiled once per instruction set (see setup.py); interaction_plan.cpp picks among them.
#include "denormals.h"
#include "interaction.h"
#include "interaction_second.h"
#include "interaction_slopes.h"
#include "interaction_sums.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace popgeo {
namespace POPGEO_ISA {

#ifndef POPGEO_HAS_FMA

const InteractionKernels interaction_kernels = {nullptr, nullptr, nullptr, nullptr};

#else

inline int64_t thread_index() {
#ifdef _OPENMP
  return omp_get_thread_num();
#else
  return 0;
#endif
}

constexpr int64_t PARALLEL_EDGES = 256;  // up to as many a parallel region costs more than it saves

inline bool is_parallel(const Shared& shared) { return shared.call.num_threads > 1 && shared.num_active > PARALLEL_EDGES; }

int64_t workspace(const InteractionCall& call) { return Shared(call, call.num_edges).size; }

void forward(const InteractionCall& call) {
  Shared shared(call, call.plan[0]);
  pack(shared, false);
  const int64_t blocks = num_blocks(shared.num_active, shared.block_edges);
  const Messages messages = {shared.x, call.filters};
  const uint64_t of_caller = denormals();
#ifdef _OPENMP
#pragma omp parallel num_threads(int(call.num_threads)) if (is_parallel(shared))
#endif
  {
    const Denormals same(of_caller);
#ifdef _OPENMP
#pragma omp for schedule(static) nowait
#endif
    for (int64_t node = 0; node < call.num_sources; ++node)
      copy_sections(shared, shared.x, call.x, node, shared.x_row);
#ifdef _OPENMP
#pragma omp for schedule(static) nowait
#endif
    for (int64_t position = 0; position < (call.keeps_slopes ? shared.num_active : 0); ++position)
      fill_factors(shared, position);
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 1)
#endif
    for (int64_t block = 0; block < blocks; ++block)
      (call.keeps_slopes ? make_filters_and_slopes : make_filters)(shared, block, thread_index());
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 16)
#endif
    for (int64_t node = 0; node < call.num_rows; ++node) {
      if (shared.has_vectors())
        sum_vector_row<false, false>(shared, node, call.out);
      else if (call.keeps_slopes)
        sum_slope_row<VALUES>(shared, node, shared.x, nullptr, false, call.out);
      else
        sum_row(shared, node, &messages, 1, false, call.out);
    }
  }
}

using BlockPass = void (*)(const Shared&, int64_t block, int64_t thread, float* partial);

// What the two backward passes have in common: they go through the blocks, and then sum the rows of nodes.
template <class SumRows>
inline void go_through_blocks(const Shared& shared, BlockPass pass, bool is_asked, SumRows sum_rows) {
  const InteractionCall& call = shared.call;
  const int64_t partials = num_partials(shared.num_active);
  const int64_t blocks = is_asked ? num_blocks(shared.num_active, shared.block_edges) : 0;
  int64_t inputs = 1;
  for (int64_t l = 0; l < call.num_layers; ++l) inputs = call.layers[l].in > inputs ? call.layers[l].in : inputs;
  if (call.grad_expansion)
    memset(call.grad_expansion, 0, sizeof(float) * size_t(call.num_edges * (call.centres ? 1 : call.layers[0].in)));
  if (call.grad_envelope) memset(call.grad_envelope, 0, sizeof(float) * size_t(call.num_edges));
  if (call.grad_direction) memset(call.grad_direction, 0, sizeof(float) * size_t(AXES * call.num_edges));
  const uint64_t of_caller = denormals();
#ifdef _OPENMP
#pragma omp parallel num_threads(int(call.num_threads)) if (is_parallel(shared))
#endif
  {
    const Denormals same(of_caller);
#ifdef _OPENMP
#pragma omp for schedule(static) nowait
#endif
    for (int64_t node = 0; node < call.num_sources; ++node) {
      copy_sections(shared, shared.x, call.x, node, shared.x_row);
      if (call.is_second) copy_sections(shared, shared.along_x, call.along_x, node, shared.x_row);
    }
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
    for (int64_t position = 0; position < (call.keeps_slopes ? shared.num_active : 0); ++position)
      fill_factors(shared, position);
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
    for (int64_t node = 0; node < call.num_rows; ++node)
      copy_sections(shared, shared.grad, call.grad, node, shared.grad_row);
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 1)
#endif
    for (int64_t p = 0; p < partials; ++p) {
      float* partial = shared.partials + p * shared.partial_size;
      memset(partial, 0, sizeof(float) * size_t(shared.partial_size));
      for (int64_t block = p * blocks / partials; block < (p + 1) * blocks / partials; ++block)
        pass(shared, block, thread_index(), partial);
    }
    sum_rows();
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
    for (int64_t input = 0; input < inputs; ++input) add_up_partials(shared, input);
  }
}

void backward(const InteractionCall& call) {
  Shared shared(call, call.plan[0]);
  pack(shared, true);
  const Messages back = {shared.grad, call.filters};
  go_through_blocks(shared, call.keeps_slopes ? go_back_kept_block : go_back_block, wants_layers(call), [&] {
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 16)
#endif
    for (int64_t node = 0; node < (call.out ? call.num_sources : 0); ++node) {
      if (shared.has_vectors())
        sum_vector_row<true, false>(shared, node, call.out);
      else if (call.keeps_slopes)
        sum_slope_row<VALUES>(shared, node, shared.grad, nullptr, true, call.out);
      else
        sum_row(shared, node, &back, 1, true, call.out);
    }
  });
}

// The gradient of <along_x, grad_x> + <along_expansion, grad_expansion> + <along_envelope, grad_envelope> + <along_direction,
// grad_direction>, which is <grad, how the sums change along all four>.
void second(const InteractionCall& call) {
  Shared shared(call, call.plan[0]);
  pack(shared, true);
  const Messages back = {shared.grad, shared.tangents};
  const Messages there[2] = {{shared.x, shared.tangents}, {shared.along_x, call.filters}};
  const bool kept = call.keeps_slopes;
  go_through_blocks(shared, kept ? go_back_slopes_block : go_back_second_block, !kept || wants_weights(call), [&] {
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 16) nowait
#endif
    for (int64_t node = 0; node < (call.grad_grad ? call.num_rows : 0); ++node) {
      if (shared.has_vectors())
        sum_vector_row<false, true>(shared, node, call.grad_grad);
      else if (kept && call.along_x)
        sum_slope_row<VALUES_AND_CHANGES>(shared, node, shared.x, shared.along_x, false, call.grad_grad);
      else if (kept)
        sum_slope_row<CHANGES>(shared, node, shared.x, nullptr, false, call.grad_grad);
      else
        sum_row(shared, node, there, call.along_x ? 2 : 1, false, call.grad_grad);
    }
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 16)
#endif
    for (int64_t node = 0; node < (call.out ? call.num_sources : 0); ++node) {
      if (shared.has_vectors())
        sum_vector_row<true, true>(shared, node, call.out);
      else if (kept)
        sum_slope_row<CHANGES>(shared, node, shared.grad, nullptr, true, call.out);
      else
        sum_row(shared, node, &back, 1, true, call.out);
    }
  });
}

const InteractionKernels interaction_kernels = {workspace, forward, backward, second};

#endif

}  // namespace POPGEO_ISA
}  // namespace popgeo
