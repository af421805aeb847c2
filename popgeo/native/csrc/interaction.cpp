// Interactions of SchNet's kind, forward and backward, in one pass over the edges (arXiv:1706.08566).
//
// Blocks of edges that stay in cache go through expansion, filter network and envelope; of all this only the filters
// are written to memory. Each receiver then sums its messages in the order of the edges. The backward pass makes the
// layers within a block anew, and sums the weights' gradients in a number of parts that does not depend on the threads.
// So the bits are the same for any number of threads and every instruction set that has fused multiply-adds.
//
// The file is compiled once per instruction set (see setup.py); interaction_plan.cpp picks among them.
#include "activations.h"
#include "interaction.h"
#include "products.h"
#include "vectors.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace popgeo {
namespace POPGEO_ISA {

#ifndef POPGEO_HAS_FMA

const InteractionKernels interaction_kernels = {nullptr, nullptr, nullptr};

#else

inline int64_t up_to_group(int64_t rows) { return (rows + GROUP - 1) / GROUP * GROUP; }

// What every block of a call shares, and where the workspace holds it.
struct Shared {
  const InteractionCall& call;
  InteractionPlan plan;
  int64_t num_active, channels, row, widest;
  float *x, *grad;                     // with padded rows
  float *down[MAX_LAYERS];             // weights as [in, padded(out)]
  float *up[MAX_LAYERS];               // weights as [out, padded(in)]
  float *bias[MAX_LAYERS], *centres;
  float *partials, *threads;
  int64_t partial_size, thread_size, size;
  bool has_bands;  // whether Gaussians that are exactly 0 are left out
  float reach;     // beyond which they are

  const Layer& layer(int64_t l) const { return call.layers[l]; }
  const Layer& last() const { return call.layers[call.num_layers - 1]; }
  const int32_t* part(int64_t start) const { return call.plan + start; }
  int64_t input_row() const { return padded(layer(0).in); }

  Shared(const InteractionCall& given, int64_t active)
      : call(given), plan{given.num_edges, given.num_sources, given.num_rows}, num_active(active) {
    channels = last().out;
    row = padded(channels);
    widest = input_row();
    for (int64_t l = 0; l < call.num_layers; ++l)
      if (padded(layer(l).out) > widest) widest = padded(layer(l).out);
    float* free = call.workspace;
    const auto take = [&](int64_t count) {
      float* start = free;
      free += count;
      return start;
    };
    x = take(call.num_sources * row);
    grad = take(call.num_rows * row);
    centres = take(input_row());
    partial_size = 0;
    for (int64_t l = 0; l < call.num_layers; ++l) {
      down[l] = take(layer(l).in * padded(layer(l).out));
      up[l] = take(layer(l).out * padded(layer(l).in));
      bias[l] = take(padded(layer(l).out));
      partial_size += (up_to_group(layer(l).in) + 1) * padded(layer(l).out);
    }
    partials = take(partial_size * num_partials(num_active));
    // The expansion; values and slopes of each hidden layer; two gradients and the filters without envelope.
    thread_size = BLOCK_EDGES * (input_row() + 2 * (call.num_layers - 1) * widest + 3 * widest);
    threads = take(thread_size * call.num_threads);
    size = free - call.workspace;
  }
};

inline void copy_padded(float* to, const float* from, int64_t count, int64_t row) {
  memcpy(to, from, sizeof(float) * size_t(count));
  memset(to + count, 0, sizeof(float) * size_t(row - count));
}

inline bool all_finite(const float* values, int64_t count) {
  uint32_t broken = 0;
  for (int64_t i = 0; i < count; ++i)
    broken |= ((bit_cast<uint32_t>(values[i]) & 0x7f800000u) + 0x00800000u) & 0x80000000u;
  return !broken;
}

// Packs weights as the products read them, and finds out whether Gaussians may be left out.
inline void pack(Shared& shared, bool is_backward) {
  const InteractionCall& call = shared.call;
  for (int64_t l = 0; l < call.num_layers; ++l) {
    const Layer& layer = call.layers[l];
    const int64_t down_row = padded(layer.out), up_row = padded(layer.in);
    memset(shared.down[l], 0, sizeof(float) * size_t(layer.in * down_row));
    for (int64_t o = 0; o < layer.out; ++o)
      for (int64_t i = 0; i < layer.in; ++i) shared.down[l][i * down_row + o] = layer.weight[o * layer.in + i];
    if (is_backward)
      for (int64_t o = 0; o < layer.out; ++o)
        copy_padded(shared.up[l] + o * up_row, layer.weight + o * layer.in, layer.in, up_row);
    if (layer.bias)
      copy_padded(shared.bias[l], layer.bias, layer.out, down_row);
    else
      memset(shared.bias[l], 0, sizeof(float) * size_t(down_row));
  }
  shared.has_bands = false;
  if (!call.centres) return;
  const Layer& first = call.layers[0];
  copy_padded(shared.centres, call.centres, first.in, shared.input_row());
  bool climbs = true;
  for (int64_t k = 1; k < first.in; ++k) climbs &= call.centres[k - 1] <= call.centres[k];
  // With a weight that is not finite, 0 times it is NaN, which must not be left out.
  shared.has_bands = climbs && call.width < 0 && all_finite(first.weight, first.in * first.out);
  shared.reach = 1.001f * __builtin_sqrtf(LEAST_EXPONENT / float(call.width));
}

// One block of edges and the memory of the thread that works on it.
struct Block {
  const Shared& shared;
  int64_t first, count;
  const int32_t* edges;
  float *expansion, *values[MAX_LAYERS], *slopes[MAX_LAYERS], *gradient, *other, *bare;
  Span inputs[BLOCK_EDGES / GROUP];  // of each group of edges: which inputs of the network are not all 0

  Block(const Shared& s, int64_t block, int64_t thread) : shared(s), first(block * BLOCK_EDGES) {
    const int64_t left = s.num_active - first;
    count = left < BLOCK_EDGES ? left : BLOCK_EDGES;
    edges = s.part(s.plan.edges()) + first;
    float* free = s.threads + thread * s.thread_size;
    const auto take = [&](int64_t row) {
      float* start = free;
      free += BLOCK_EDGES * row;
      return start;
    };
    expansion = take(s.input_row());
    for (int64_t l = 0; l + 1 < s.call.num_layers; ++l) values[l] = take(s.widest), slopes[l] = take(s.widest);
    gradient = take(s.widest), other = take(s.widest), bare = take(s.widest);
  }

  int64_t rows() const { return up_to_group(count); }
  const float* input(int64_t l) const { return l ? values[l - 1] : expansion; }
  int64_t input_row(int64_t l) const { return padded(shared.layer(l).in); }
  float envelope(int64_t i) const { return shared.call.envelope ? shared.call.envelope[edges[i]] : 1.0f; }
};

// Expansion ---------------------------------------------------------------------------------------------------------

// The first of ascending centres that is not below a place.
inline int64_t first_centre(const float* centres, int64_t count, float place) {
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (centres[middle] < place)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

inline Span band_of_group(const Block& block, int64_t group) {
  const Shared& shared = block.shared;
  const int64_t num_inputs = shared.layer(0).in;
  if (!shared.has_bands) return {0, num_inputs};
  const int64_t begin = group * GROUP, end = begin + GROUP < block.count ? begin + GROUP : block.count;
  float nearest = shared.call.expansion[block.edges[begin]], farthest = nearest;
  bool is_number = true;
  for (int64_t i = begin; i < end; ++i) {
    const float r = shared.call.expansion[block.edges[i]];
    is_number &= r == r;
    nearest = r < nearest ? r : nearest;
    farthest = r > farthest ? r : farthest;
  }
  if (!is_number) return {0, num_inputs};
  const Span span = {first_centre(shared.call.centres, num_inputs, nearest - shared.reach),
                     first_centre(shared.call.centres, num_inputs, farthest + shared.reach)};
  return span;
}

inline floats gaussian(floats difference, float width) {
  return exp_of_negative(width * (difference * difference));
}

inline void expand(Block& block) {
  const Shared& shared = block.shared;
  const InteractionCall& call = shared.call;
  const int64_t row = shared.input_row(), num_inputs = shared.layer(0).in;
  memset(block.expansion, 0, sizeof(float) * size_t(block.rows() * row));
  for (int64_t group = 0; group * GROUP < block.count; ++group) {
    block.inputs[group] = band_of_group(block, group);
    const int64_t begin = block.inputs[group].begin / LANES * LANES, end = block.inputs[group].end;
    for (int64_t i = group * GROUP; i < (group + 1) * GROUP && i < block.count; ++i) {
      float* to = block.expansion + i * row;
      if (!call.centres) {
        memcpy(to, call.expansion + int64_t(block.edges[i]) * num_inputs, sizeof(float) * size_t(num_inputs));
        continue;
      }
      const floats r = splat(call.expansion[block.edges[i]]);
      for (int64_t k = begin; k < end; k += LANES)
        store(to + k, gaussian(r - load(shared.centres + k), float(call.width)));
    }
  }
}

// d r of what the Gaussians of edge i are multiplied with.
inline float slope_of_expansion(const Block& block, int64_t i, const float* gradient) {
  const Shared& shared = block.shared;
  const float r = shared.call.expansion[block.edges[i]], width = float(shared.call.width);
  const float* values = block.expansion + i * shared.input_row();
  float total = 0;
  for (int64_t k = 0; k < shared.layer(0).in; ++k)
    total = __builtin_fmaf(gradient[k] * values[k], 2.0f * width * (r - shared.centres[k]), total);
  return total;
}

// Filters -----------------------------------------------------------------------------------------------------------

inline void apply_layer(const Block& block, int64_t l, float* to, int64_t to_row) {
  const Layer& layer = block.shared.layer(l);
  Span all[BLOCK_EDGES / GROUP];
  for (Span& span : all) span = {0, layer.in};
  product<false>(block.rows(), layer.out, block.input(l), block.input_row(l), block.shared.down[l], padded(layer.out),
                 l ? all : block.inputs, block.shared.bias[l], to, to_row, false);
}

inline void apply_hidden_layers(const Block& block, bool with_slopes) {
  for (int64_t l = 0; l + 1 < block.shared.call.num_layers; ++l) {
    const int64_t row = padded(block.shared.layer(l).out);
    apply_layer(block, l, block.values[l], row);
    activate_rows(block.shared.call.activation, block.values[l], with_slopes ? block.slopes[l] : nullptr,
                  block.rows() * row);
  }
}

inline void scale_row(float* values, float factor, int64_t row) {
  for (int64_t c = 0; c < row; c += LANES) store(values + c, load(values + c) * factor);
}

inline void make_filters(const Shared& shared, int64_t index, int64_t thread) {
  Block block(shared, index, thread);
  expand(block);
  apply_hidden_layers(block, false);
  float* filters = shared.call.filters + block.first * shared.row;
  apply_layer(block, shared.call.num_layers - 1, filters, shared.row);
  if (!shared.call.envelope) return;
  for (int64_t i = 0; i < block.count; ++i) scale_row(filters + i * shared.row, block.envelope(i), shared.row);
}

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
#ifdef _OPENMP
#pragma omp parallel num_threads(int(call.num_threads)) if (is_parallel(shared))
#endif
  {
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
#ifdef _OPENMP
#pragma omp parallel num_threads(int(call.num_threads)) if (is_parallel(shared))
#endif
  {
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
