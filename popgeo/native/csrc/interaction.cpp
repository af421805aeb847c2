// Interactions of SchNet's kind, forward and backward, in one pass over the edges (arXiv:1706.08566).
//
// Blocks of edges that stay in cache go through expansion, filter network and envelope; of all this only the filters
// are written to memory. Each receiver then sums its messages in the order of the edges. The backward pass makes the
// layers within a block anew, and sums the weights' gradients in a number of parts that does not depend on the threads.
// So the bits are the same for any number of threads and every instruction set that has fused multiply-adds.
//
// The file is compiled once per instruction set (see setup.py); interaction_plan.cpp picks among them.
#include "denormals.h"
#include "interaction.h"
#include "interaction_block.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace popgeo {
namespace POPGEO_ISA {

#ifndef POPGEO_HAS_FMA

const InteractionKernels interaction_kernels = {nullptr, nullptr, nullptr};

#else

// Sums --------------------------------------------------------------------------------------------------------------

constexpr int SUM_VECTORS = 8;

// out[row] += features[other] * filters[position] over the pairs of a row, a few vectors of a row at a time.
template <int VECTORS>
inline void add_messages(floats* sums, const int32_t* pairs, int64_t begin, int64_t end, const float* features,
                         const float* filters, int64_t row) {
  constexpr int64_t AHEAD = 8;
  for (int64_t p = begin; p < end; ++p) {
    const int64_t later = p + AHEAD < end ? p + AHEAD : end - 1;
    const float* next = filters + pairs[2 * later] * row;
#pragma GCC unroll 8
    for (int offset = 0; offset < VECTORS * LANES; offset += 16) __builtin_prefetch(next + offset, 0, 3);
    const float *filter = filters + pairs[2 * p] * row, *feature = features + pairs[2 * p + 1] * row;
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) sums[v] = fma(load(feature + v * LANES), load(filter + v * LANES), sums[v]);
  }
}

template <int COUNT>
struct Vectors {
  static constexpr int count = COUNT;
};

struct Arrivals {
  const int32_t *rowptr, *pairs;
};

template <int VECTORS>
inline void sum_columns(const Arrivals* arrivals, int64_t kinds, int64_t index, const float* features,
                        const float* filters, int64_t row, float* out, int64_t width) {
  floats sums[VECTORS] = {};
  for (int64_t kind = 0; kind < kinds; ++kind) {
    const int32_t* rowptr = arrivals[kind].rowptr;
    add_messages<VECTORS>(sums, arrivals[kind].pairs, rowptr[index], rowptr[index + 1], features, filters, row);
  }
  float whole[VECTORS * LANES];
#pragma GCC unroll 8
  for (int v = 0; v < VECTORS; ++v) store(whole + v * LANES, sums[v]);
  memcpy(out, whole, sizeof(float) * size_t(width));
}

// What arrives at a row: at a receiver from the sources, or back at a source; both where pairs stand for two edges.
inline void sum_row(const Shared& shared, int64_t index, const float* features, bool at_sources) {
  const InteractionPlan& plan = shared.plan;
  const Arrivals at_receiver = {shared.part(plan.receiver_rowptr()), shared.part(plan.receiver_pairs())};
  const Arrivals at_source = {shared.part(plan.source_rowptr()), shared.part(plan.source_pairs())};
  const Arrivals both[2] = {at_sources ? at_source : at_receiver, at_sources ? at_receiver : at_source};
  const int64_t kinds = shared.call.half_list ? 2 : 1;
  for (int64_t c = 0; c < shared.channels; c += SUM_VECTORS * LANES) {
    const int64_t left = shared.channels - c, width = left < SUM_VECTORS * LANES ? left : SUM_VECTORS * LANES;
    float* out = shared.call.out + index * shared.channels + c;
    const auto sum = [&](auto vectors) {
      sum_columns<decltype(vectors)::count>(both, kinds, index, features + c, shared.call.filters + c, shared.row, out, width);
    };
    switch ((width + LANES - 1) / LANES) {
      case 1: sum(Vectors<1>()); break;
      case 2: sum(Vectors<2>()); break;
      case 3: sum(Vectors<3>()); break;
      case 4: sum(Vectors<4>()); break;
      case 5: sum(Vectors<5>()); break;
      case 6: sum(Vectors<6>()); break;
      case 7: sum(Vectors<7>()); break;
      default: sum(Vectors<8>());
    }
  }
}

// Backward ----------------------------------------------------------------------------------------------------------

// The gradient of each filter: the features that it multiplies times the gradient of the sum that it enters.
inline void gradient_of_filters(Block& block) {
  const Shared& shared = block.shared;
  const InteractionCall& call = shared.call;
  const int32_t* sources = shared.part(shared.plan.sources()) + block.first;
  const int32_t* receivers = shared.part(shared.plan.receivers()) + block.first;
  const int64_t row = shared.row;
  if (call.grad_envelope) apply_layer(block, call.num_layers - 1, block.bare, row);
  for (int64_t i = 0; i < block.count; ++i) {
    const float *x = shared.x + sources[i] * row, *grad = shared.grad + receivers[i] * row;
    const float *back_x = shared.x + receivers[i] * row, *back_grad = shared.grad + sources[i] * row;
    float* to = block.gradient + i * row;
    const float envelope = block.envelope(i);
    for (int64_t c = 0; c < row; c += LANES) {
      floats product = load(x + c) * load(grad + c);
      if (call.half_list) product = fma(load(back_x + c), load(back_grad + c), product);
      store(to + c, product);
    }
    if (call.grad_envelope) {
      float total = 0;
      for (int64_t c = 0; c < shared.channels; ++c) total = __builtin_fmaf(block.bare[i * row + c], to[c], total);
      call.grad_envelope[block.edges[i]] = total;
    }
    if (call.envelope) scale_row(to, envelope, row);
  }
  memset(block.gradient + block.count * row, 0, sizeof(float) * size_t((block.rows() - block.count) * row));
}

// Which edges of a block are to be summed for each group of inputs of its first layer.
inline void edges_of_inputs(const Block& block, int64_t num_inputs, Span* spans) {
  for (int64_t k = 0; k < num_inputs; k += GROUP) {
    Span span = {block.count, 0};
    for (int64_t group = 0; group * GROUP < block.count; ++group) {
      if (block.inputs[group].begin >= k + GROUP || block.inputs[group].end <= k) continue;
      if (span.begin > group * GROUP) span.begin = group * GROUP;
      span.end = (group + 1) * GROUP < block.count ? (group + 1) * GROUP : block.count;
    }
    spans[k / GROUP] = span.begin < span.end ? span : Span{0, 0};
  }
}

inline void add_weight_gradients(const Block& block, int64_t l, float* weights, float* bias) {
  const Layer& layer = block.shared.layer(l);
  const int64_t row = padded(layer.out), inputs = up_to_group(layer.in);
  if (layer.grad_bias)
    for (int64_t i = 0; i < block.count; ++i)
      for (int64_t c = 0; c < row; c += LANES) store(bias + c, load(bias + c) + load(block.gradient + i * row + c));
  if (!layer.grad_weight) return;
  constexpr int64_t AT_ONCE = 64;  // groups of inputs
  for (int64_t first = 0; first < inputs; first += AT_ONCE * GROUP) {
    const int64_t width = inputs - first < AT_ONCE * GROUP ? inputs - first : AT_ONCE * GROUP;
    Span spans[AT_ONCE];
    for (Span& span : spans) span = {0, block.count};
    if (l == 0 && block.shared.has_bands && inputs <= AT_ONCE * GROUP) edges_of_inputs(block, inputs, spans);
    product<true>(width, layer.out, block.input(l) + first, block.input_row(l), block.gradient, row, spans, nullptr,
                  weights + first * row, row, true);
  }
}

inline void go_back_block(const Shared& shared, int64_t index, int64_t thread, float* partial) {
  const InteractionCall& call = shared.call;
  Block block(shared, index, thread);
  expand(block);
  apply_hidden_layers(block, true);
  gradient_of_filters(block);
  float* end = partial + shared.partial_size;
  for (int64_t l = call.num_layers - 1; l >= 0; --l) {
    const Layer& layer = shared.layer(l);
    const int64_t row = padded(layer.out), input_row = padded(layer.in);
    end -= (up_to_group(layer.in) + 1) * row;
    add_weight_gradients(block, l, end, end + up_to_group(layer.in) * row);
    if (l == 0 && !call.grad_expansion) break;
    Span all[BLOCK_EDGES / GROUP];
    for (Span& span : all) span = {0, layer.out};
    product<false>(block.rows(), layer.in, block.gradient, row, shared.up[l], input_row, all, nullptr, block.other,
                   input_row, false);
    if (l)
      for (int64_t i = 0; i < block.rows() * input_row; i += LANES)
        store(block.other + i, load(block.other + i) * load(block.slopes[l - 1] + i));
    float* swapped = block.gradient;
    block.gradient = block.other;
    block.other = swapped;
  }
  if (!call.grad_expansion) return;
  for (int64_t i = 0; i < block.count; ++i) {
    const float* gradient = block.gradient + i * shared.input_row();
    if (call.centres)
      call.grad_expansion[block.edges[i]] = slope_of_expansion(block, i, gradient);
    else
      memcpy(call.grad_expansion + block.edges[i] * shared.layer(0).in, gradient,
             sizeof(float) * size_t(shared.layer(0).in));
  }
}

// Input i of every layer: its column of the weights' gradient, and with the first one the bias's.
inline void add_up_partials(const Shared& shared, int64_t input) {
  const int64_t count = num_partials(shared.num_active);
  const float* start = shared.partials;
  for (int64_t l = 0; l < shared.call.num_layers; ++l) {
    const Layer& layer = shared.layer(l);
    const int64_t row = padded(layer.out), bias = up_to_group(layer.in);
    const auto total = [&](int64_t at) {
      float sum = 0;
      for (int64_t p = 0; p < count; ++p) sum += start[p * shared.partial_size + at];
      return sum;
    };
    if (layer.grad_weight && input < layer.in)
      for (int64_t o = 0; o < layer.out; ++o) layer.grad_weight[o * layer.in + input] = total(input * row + o);
    if (layer.grad_bias && input == 0)
      for (int64_t o = 0; o < layer.out; ++o) layer.grad_bias[o] = total(bias * row + o);
    start += (bias + 1) * row;
  }
}

// Calls ---------------------------------------------------------------------------------------------------------------

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
  const int64_t blocks = num_blocks(shared.num_active);
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
      copy_padded(shared.x + node * shared.row, call.x + node * shared.channels, shared.channels, shared.row);
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 1)
#endif
    for (int64_t block = 0; block < blocks; ++block) make_filters(shared, block, thread_index());
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 16)
#endif
    for (int64_t node = 0; node < call.num_rows; ++node) sum_row(shared, node, shared.x, false);
  }
}

void backward(const InteractionCall& call) {
  Shared shared(call, call.plan[0]);
  pack(shared, true);
  const int64_t blocks = num_blocks(shared.num_active), partials = num_partials(shared.num_active);
  int64_t inputs = 1;
  for (int64_t l = 0; l < call.num_layers; ++l) inputs = call.layers[l].in > inputs ? call.layers[l].in : inputs;
  if (call.grad_expansion)
    memset(call.grad_expansion, 0, sizeof(float) * size_t(call.num_edges * (call.centres ? 1 : call.layers[0].in)));
  if (call.grad_envelope) memset(call.grad_envelope, 0, sizeof(float) * size_t(call.num_edges));
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
      copy_padded(shared.x + node * shared.row, call.x + node * shared.channels, shared.channels, shared.row);
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
    for (int64_t node = 0; node < call.num_rows; ++node)
      copy_padded(shared.grad + node * shared.row, call.grad + node * shared.channels, shared.channels, shared.row);
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 1) nowait
#endif
    for (int64_t p = 0; p < partials; ++p) {
      float* partial = shared.partials + p * shared.partial_size;
      memset(partial, 0, sizeof(float) * size_t(shared.partial_size));
      for (int64_t block = p * blocks / partials; block < (p + 1) * blocks / partials; ++block)
        go_back_block(shared, block, thread_index(), partial);
    }
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 16)
#endif
    for (int64_t node = 0; node < (call.out ? call.num_sources : 0); ++node) sum_row(shared, node, shared.grad, true);
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
    for (int64_t input = 0; input < inputs; ++input) add_up_partials(shared, input);
  }
}

const InteractionKernels interaction_kernels = {workspace, forward, backward};

#endif

}  // namespace POPGEO_ISA
}  // namespace popgeo
