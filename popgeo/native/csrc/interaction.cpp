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

const InteractionKernels interaction_kernels = {nullptr, nullptr, nullptr, nullptr};

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

// What is multiplied and summed.
struct Messages {
  const float *features, *filters;
};

template <int VECTORS>
inline void sum_columns(const Arrivals* arrivals, int64_t kinds, int64_t index, const Messages* messages,
                        int64_t num_messages, int64_t row, int64_t column, float* out, int64_t width) {
  floats sums[VECTORS] = {};
  for (int64_t m = 0; m < num_messages; ++m)
    for (int64_t kind = 0; kind < kinds; ++kind) {
      const int32_t* rowptr = arrivals[kind].rowptr;
      add_messages<VECTORS>(sums, arrivals[kind].pairs, rowptr[index], rowptr[index + 1],
                            messages[m].features + column, messages[m].filters + column, row);
    }
  float whole[VECTORS * LANES];
#pragma GCC unroll 8
  for (int v = 0; v < VECTORS; ++v) store(whole + v * LANES, sums[v]);
  memcpy(out, whole, sizeof(float) * size_t(width));
}

// What arrives at a row of `to`: at a receiver from the sources, or back at a source; both where pairs stand for two
// edges.
inline void sum_row(const Shared& shared, int64_t index, const Messages* messages, int64_t num_messages,
                    bool at_sources, float* to) {
  const InteractionPlan& plan = shared.plan;
  const Arrivals at_receiver = {shared.part(plan.receiver_rowptr()), shared.part(plan.receiver_pairs())};
  const Arrivals at_source = {shared.part(plan.source_rowptr()), shared.part(plan.source_pairs())};
  const Arrivals both[2] = {at_sources ? at_source : at_receiver, at_sources ? at_receiver : at_source};
  const int64_t kinds = shared.call.half_list ? 2 : 1;
  for (int64_t c = 0; c < shared.channels; c += SUM_VECTORS * LANES) {
    const int64_t left = shared.channels - c, width = left < SUM_VECTORS * LANES ? left : SUM_VECTORS * LANES;
    float* out = to + index * shared.channels + c;
    const auto sum = [&](auto vectors) {
      sum_columns<decltype(vectors)::count>(both, kinds, index, messages, num_messages, shared.row, c, out, width);
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

// to[i] = what the filter of edge i multiplies times what the gradient is of the sum that it enters.
inline void gradient_of_filters(const Block& block, const float* x, const float* grad, float* to) {
  const Shared& shared = block.shared;
  const int32_t* sources = shared.part(shared.plan.sources()) + block.first;
  const int32_t* receivers = shared.part(shared.plan.receivers()) + block.first;
  const int64_t row = shared.row;
  for (int64_t i = 0; i < block.count; ++i, to += row) {
    const float *at_source = x + sources[i] * row, *of_receiver = grad + receivers[i] * row;
    const float *at_receiver = x + receivers[i] * row, *of_source = grad + sources[i] * row;
    for (int64_t c = 0; c < shared.channels; c += LANES) {
      floats product = load(at_source + c) * load(of_receiver + c);
      if (shared.call.half_list) product = fma(load(at_receiver + c), load(of_source + c), product);
      store(to + c, product);
    }
  }
  memset(to, 0, sizeof(float) * size_t((block.rows() - block.count) * row));
}

inline float dot(const float* a, const float* b, Span span) {
  const Span lines = {span.begin / LINE * LINE, span.end / LINE * LINE};
  float total = sum_in_chains(lines, [&](int64_t k, floats sum) { return fma(load(a + k), load(b + k), sum); });
  for (int64_t k = lines.end > span.begin ? lines.end : span.begin; k < span.end; ++k) total = __builtin_fmaf(a[k], b[k], total);
  return total;
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

inline void add_bias_gradient(const Block& block, int64_t l, const float* gradient, float* bias) {
  const Rows rows = block.results(l);
  if (!block.shared.layer(l).grad_bias) return;
  for (int64_t c = 0; c < rows.width; c += LANES) {
    floats sum = load(bias + c);
    for (int64_t i = 0; i < block.count; ++i) sum = sum + load(gradient + i * rows.stride + c);
    store(bias + c, sum);
  }
}

// The gradient of layer l by its weights, where its results have this gradient and its inputs these rows.
inline void add_weight_gradient(const Block& block, int64_t l, const float* gradient, const float* input,
                                float* weights) {
  const Layer& layer = block.shared.layer(l);
  const int64_t row = padded(layer.out), inputs = up_to_group(layer.in);
  if (!layer.grad_weight) return;
  constexpr int64_t AT_ONCE = 64;  // groups of inputs
  for (int64_t first = 0; first < inputs; first += AT_ONCE * GROUP) {
    const int64_t width = inputs - first < AT_ONCE * GROUP ? inputs - first : AT_ONCE * GROUP;
    Span spans[AT_ONCE];
    for (Span& span : spans) span = {0, block.count};
    if (l == 0 && block.shared.has_bands && inputs <= AT_ONCE * GROUP) edges_of_inputs(block, inputs, spans);
    product<true>(width, layer.out, input + first, block.input_row(l), gradient, row, spans, nullptr,
                  weights + first * row, row, true);
  }
}

// to = the gradient of a layer's results times its weights: that of its inputs.
inline void go_back_layer(const Block& block, int64_t l, const float* gradient, float* to) {
  const Layer& layer = block.shared.layer(l);
  const int64_t row = padded(layer.out), input_row = padded(layer.in);
  Span all[BLOCK_EDGES / GROUP];
  for (Span& span : all) span = {0, layer.out};
  if (l == 0) return gradient_of_inputs(block, gradient, to);
  product<false>(block.rows(), layer.in, gradient, row, block.shared.up[l], input_row, all, nullptr, to, input_row, false);
}

// The gradient of each edge's envelope, given those of its filter and of the last layer's inputs but for the envelope.
inline void gradient_of_envelope(const Block& block, const float* gradient, const float* of_inputs) {
  const Shared& shared = block.shared;
  const int64_t l = shared.call.num_layers - 1, input_row = block.input_row(l);
  for (int64_t i = 0; i < block.count; ++i) {
    const float by_inputs = dot(of_inputs + i * input_row, block.input(l) + i * input_row, block.inputs_of(l, i));
    const float by_bias = dot(gradient + i * shared.row, shared.bias[l], {0, shared.channels});
    shared.call.grad_envelope[block.edges[i]] = by_inputs + by_bias;
  }
}

inline void gradient_of_expansion(const Block& block, const float* gradient) {
  const InteractionCall& call = block.shared.call;
  const int64_t width = block.shared.layer(0).in;
  for (int64_t i = 0; i < block.count; ++i, gradient += block.shared.input_row()) {
    if (call.centres)
      call.grad_expansion[block.edges[i]] = slope_of_expansion(block, i, gradient);
    else
      memcpy(call.grad_expansion + block.edges[i] * width, gradient, sizeof(float) * size_t(width));
  }
}

// Whether anything before layer l is to be differentiated by.
inline bool goes_on(const InteractionCall& call, int64_t l) {
  return l > 0 || call.grad_expansion || (call.grad_envelope && call.num_layers == 1);
}

inline bool wants_layers(const InteractionCall& call) {
  bool wants = call.grad_expansion || call.grad_envelope;
  for (int64_t l = 0; l < call.num_layers; ++l) wants |= call.layers[l].grad_weight || call.layers[l].grad_bias;
  return wants;
}

inline void go_back_activation(Rows rows, float* gradient, const float* slopes) {
  for (int64_t row = 0; row < rows.count * rows.stride; row += rows.stride)
    for (int64_t i = row; i < row + rows.width; i += LANES) store(gradient + i, load(gradient + i) * load(slopes + i));
}

inline void go_back_block(const Shared& shared, int64_t index, int64_t thread, float* partial) {
  const InteractionCall& call = shared.call;
  Block block(shared, index, thread);
  expand(block);
  apply_hidden_layers(block, true);
  gradient_of_filters(block, shared.x, shared.grad, block.gradient);
  float* end = partial + shared.partial_size;
  for (int64_t l = call.num_layers - 1; l >= 0; --l) {
    const int64_t row = padded(shared.layer(l).out), input_row = padded(shared.layer(l).in);
    const bool is_last = l == call.num_layers - 1;
    if (goes_on(call, l)) go_back_layer(block, l, block.gradient, block.other);
    if (is_last && call.grad_envelope) gradient_of_envelope(block, block.gradient, block.other);
    if (is_last) scale_by_envelope(block, block.gradient, shared.channels, row);
    if (is_last && goes_on(call, l)) scale_by_envelope(block, block.other, shared.layer(l).in, input_row);
    end -= (up_to_group(shared.layer(l).in) + 1) * row;
    add_bias_gradient(block, l, block.gradient, end + up_to_group(shared.layer(l).in) * row);
    add_weight_gradient(block, l, block.gradient, block.input(l), end);
    if (l) go_back_activation(block.results(l - 1), block.other, block.slopes[l - 1]);
    float* swapped = block.gradient;
    block.gradient = block.other;
    block.other = swapped;
  }
  if (call.grad_expansion) gradient_of_expansion(block, block.gradient);
}

// The backward pass of the backward pass: everything has a value and how it changes along what is given, and a gradient
// for each of the two.
struct SecondBlock : Block {
  float *slant, *tangents[MAX_LAYERS], *bends[MAX_LAYERS];  // of the expansion, and of each hidden layer
  float *mixed, *change, *other_change;                     // see `change_filters`; gradients by what changes

  SecondBlock(const Shared& s, int64_t block, int64_t thread) : Block(s, block, thread) {
    slant = take(s.input_row());
    for (int64_t l = 0; l + 1 < s.call.num_layers; ++l) tangents[l] = take(s.widest), bends[l] = take(s.widest);
    mixed = take(s.widest), change = take(s.widest), other_change = take(s.widest);
  }

  const float* tangent(int64_t l) const { return l ? tangents[l - 1] : slant; }
  float along_envelope(int64_t i) const {
    return shared.call.along_envelope ? shared.call.along_envelope[edges[i]] : 0.0f;
  }
};

// How the expansion changes.
inline void expand_slant(SecondBlock& block) {
  const Shared& shared = block.shared;
  const InteractionCall& call = shared.call;
  const int64_t row = shared.input_row(), num_inputs = shared.layer(0).in;
  memset(block.slant, 0, sizeof(float) * size_t(block.rows() * row));
  if (!call.along_expansion) return;
  for (int64_t i = 0; i < block.count; ++i) {
    const int64_t e = block.edges[i];
    if (!call.centres) {
      memcpy(block.slant + i * row, call.along_expansion + e * num_inputs, sizeof(float) * size_t(num_inputs));
      continue;
    }
    const floats r = splat(call.expansion[e]), factor = splat(2.0f * float(call.width) * call.along_expansion[e]);
    const Span lines = lines_of_inputs(block, i);
    for (int64_t k = lines.begin; k < lines.end; k += LANES)
      store(block.slant + i * row + k, load(block.expansion + i * row + k) * ((r - load(shared.centres + k)) * factor));
  }
}

// tangents[e] = how the filter of edge e changes: the last layer is given its inputs' change times the envelope plus its
// inputs times the envelope's change.
inline void change_filters(SecondBlock& block) {
  const Shared& shared = block.shared;
  const int64_t l = shared.call.num_layers - 1, input_row = block.input_row(l), row = shared.row;
  for (int64_t i = 0; i < block.rows(); ++i) {
    const bool is_there = i < block.count;
    const floats factor = splat(is_there ? block.envelope(i) : 0.0f);
    const floats change = splat(is_there ? block.along_envelope(i) : 0.0f);
    for (int64_t k = i * input_row; k < i * input_row + shared.layer(l).in; k += LANES)
      store(block.mixed + k, fma(load(block.tangent(l) + k), factor, load(block.input(l) + k) * change));
  }
  float* tangents = shared.tangents + block.first * row;
  apply_layer(block, l, block.mixed, nullptr, tangents, row);
  if (!shared.call.along_envelope || !shared.layer(l).bias) return;
  for (int64_t i = 0; i < block.count; ++i, tangents += row) {
    const floats change = splat(block.along_envelope(i));
    for (int64_t c = 0; c < shared.channels; c += LANES)
      store(tangents + c, fma(load(shared.bias[l] + c), change, load(tangents + c)));
  }
}

// Both gradients of the filters become those of the bare network's results; the envelope's is what it multiplies.
inline void leave_envelope(SecondBlock& block) {
  const Shared& shared = block.shared;
  const int64_t l = shared.call.num_layers - 1, input_row = block.input_row(l), row = shared.row;
  if (shared.call.grad_envelope) {
    go_back_layer(block, l, block.gradient, block.other);
    go_back_layer(block, l, block.change, block.other_change);
    gradient_of_envelope(block, block.gradient, block.other);
    for (int64_t i = 0; i < block.count; ++i)
      shared.call.grad_envelope[block.edges[i]] +=
          dot(block.other_change + i * input_row, block.tangent(l) + i * input_row, block.inputs_of(l, i));
  }
  for (int64_t i = 0; i < block.count; ++i) {
    const floats factor = splat(block.envelope(i)), change = splat(block.along_envelope(i));
    for (int64_t c = i * row; c < i * row + shared.channels; c += LANES) {
      const floats by_change = load(block.change + c);
      store(block.gradient + c, fma(load(block.gradient + c), factor, by_change * change));
      store(block.change + c, by_change * factor);
    }
  }
}

// d r of what the Gaussians of edge i and their slants are multiplied with.
inline void second_gradient_of_expansion(const SecondBlock& block) {
  const Shared& shared = block.shared;
  const InteractionCall& call = shared.call;
  gradient_of_expansion(block, block.gradient);
  if (!call.centres || !call.along_expansion) return;
  const float twice = 2.0f * float(call.width);
  for (int64_t i = 0; i < block.count; ++i) {
    const int64_t e = block.edges[i];
    const floats r = splat(call.expansion[e]);
    const float *values = block.expansion + i * shared.input_row(), *by = block.change + i * shared.input_row();
    const float total = sum_in_chains(lines_of_inputs(block, i), [&](int64_t k, floats sum) {
      const floats apart = r - load(shared.centres + k);
      return fma(load(by + k) * load(values + k), fma(apart * apart, splat(twice), splat(1.0f)), sum);
    });
    call.grad_expansion[e] = __builtin_fmaf(twice * call.along_expansion[e], total, call.grad_expansion[e]);
  }
}

inline void go_back_both(Rows rows, float* gradient, float* change, const float* slopes, const float* bends) {
  for (int64_t row = 0; row < rows.count * rows.stride; row += rows.stride)
    for (int64_t i = row; i < row + rows.width; i += LANES) {
      const floats by_change = load(change + i), slope = load(slopes + i);
      store(gradient + i, fma(load(bends + i), by_change, load(gradient + i) * slope));
      store(change + i, by_change * slope);
    }
}

inline void go_back_second_block(const Shared& shared, int64_t index, int64_t thread, float* partial) {
  const InteractionCall& call = shared.call;
  SecondBlock block(shared, index, thread);
  expand(block);
  expand_slant(block);
  for (int64_t l = 0; l + 1 < call.num_layers; ++l) {
    const int64_t row = padded(shared.layer(l).out);
    apply_layer(block, l, block.values[l], row);
    apply_layer(block, l, block.tangent(l), nullptr, block.tangents[l], row);
    activate_rows(call.activation, block.values[l], block.slopes[l], block.tangents[l], block.bends[l],
                  block.results(l));
  }
  change_filters(block);
  if (!wants_layers(call)) return;
  if (call.along_x)
    gradient_of_filters(block, shared.along_x, shared.grad, block.gradient);
  else
    memset(block.gradient, 0, sizeof(float) * size_t(block.rows() * shared.row));
  gradient_of_filters(block, shared.x, shared.grad, block.change);
  leave_envelope(block);
  float* end = partial + shared.partial_size;
  for (int64_t l = call.num_layers - 1; l >= 0; --l) {
    end -= (up_to_group(shared.layer(l).in) + 1) * padded(shared.layer(l).out);
    add_bias_gradient(block, l, block.gradient, end + up_to_group(shared.layer(l).in) * padded(shared.layer(l).out));
    add_weight_gradient(block, l, block.gradient, block.input(l), end);
    add_weight_gradient(block, l, block.change, block.tangent(l), end);
    if (l == 0 && !call.grad_expansion) return;
    go_back_layer(block, l, block.gradient, block.other);
    go_back_layer(block, l, block.change, block.other_change);
    if (l) go_back_both(block.results(l - 1), block.other, block.other_change, block.slopes[l - 1], block.bends[l - 1]);
    float *swapped = block.gradient, *swapped_change = block.change;
    block.gradient = block.other, block.other = swapped;
    block.change = block.other_change, block.other_change = swapped_change;
  }
  second_gradient_of_expansion(block);
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
      copy_padded(shared.x + node * shared.row, call.x + node * shared.channels, shared.channels, shared.row);
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 1)
#endif
    for (int64_t block = 0; block < blocks; ++block) make_filters(shared, block, thread_index());
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 16)
#endif
    for (int64_t node = 0; node < call.num_rows; ++node) sum_row(shared, node, &messages, 1, false, call.out);
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
      copy_padded(shared.x + node * shared.row, call.x + node * shared.channels, shared.channels, shared.row);
      if (call.along_x)
        copy_padded(shared.along_x + node * shared.row, call.along_x + node * shared.channels, shared.channels,
                    shared.row);
    }
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
    for (int64_t node = 0; node < call.num_rows; ++node)
      copy_padded(shared.grad + node * shared.row, call.grad + node * shared.channels, shared.channels, shared.row);
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
  go_through_blocks(shared, go_back_block, wants_layers(call), [&] {
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 16)
#endif
    for (int64_t node = 0; node < (call.out ? call.num_sources : 0); ++node)
      sum_row(shared, node, &back, 1, true, call.out);
  });
}

// The gradient of <along_x, grad_x> + <along_expansion, grad_expansion> + <along_envelope, grad_envelope>, which is
// <grad, how the sums change along all three>.
void second(const InteractionCall& call) {
  Shared shared(call, call.plan[0]);
  pack(shared, true);
  const Messages back = {shared.grad, shared.tangents};
  const Messages there[2] = {{shared.x, shared.tangents}, {shared.along_x, call.filters}};
  go_through_blocks(shared, go_back_second_block, true, [&] {
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 16) nowait
#endif
    for (int64_t node = 0; node < (call.grad_grad ? call.num_rows : 0); ++node)
      sum_row(shared, node, there, call.along_x ? 2 : 1, false, call.grad_grad);
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 16)
#endif
    for (int64_t node = 0; node < (call.out ? call.num_sources : 0); ++node)
      sum_row(shared, node, &back, 1, true, call.out);
  });
}

const InteractionKernels interaction_kernels = {workspace, forward, backward, second};

#endif

}  // namespace POPGEO_ISA
}  // namespace popgeo
