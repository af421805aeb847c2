// One block of edges on its way back: gradients of what its filters were made of. Included by interaction.cpp.
#pragma once

#include "interaction_block.h"
#include "interaction_vectors.h"

#ifdef POPGEO_HAS_FMA
namespace popgeo {
namespace POPGEO_ISA {

// to[i] = what the filter of edge i multiplies times what the gradient is of the sum that it enters.
inline void gradient_of_filters(const Block& block, const float* x, const float* grad, float* to) {
  const Shared& shared = block.shared;
  if (shared.has_vectors()) return gradient_of_vector_filters(block, x, shared.call.direction, false, to);
  const int32_t* sources = shared.part(shared.plan.sources()) + block.first;
  const int32_t* receivers = shared.part(shared.plan.receivers()) + block.first;
  const int64_t row = shared.row;
  for (int64_t i = 0; i < block.count; ++i, to += row) {
    const float *at_source = x + sources[i] * row, *of_receiver = grad + receivers[i] * row;
    const float *at_receiver = x + receivers[i] * row, *of_source = grad + sources[i] * row;
    for (int64_t c = 0; c < shared.channels; c += LANES) {
      floats product = load(at_source + c) * load(of_receiver + c);
      if (shared.both_ways) product = fma(load(at_receiver + c), load(of_source + c), product);
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
    const float by_bias = dot(gradient + i * shared.row, shared.bias[l], {0, shared.last().out});
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
  bool wants = call.grad_expansion || call.grad_envelope || call.grad_direction;
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
  gradient_of_directions(block);
  float* end = partial + shared.partial_size;
  for (int64_t l = call.num_layers - 1; l >= 0; --l) {
    const int64_t row = padded(shared.layer(l).out), input_row = padded(shared.layer(l).in);
    const bool is_last = l == call.num_layers - 1;
    if (goes_on(call, l)) go_back_layer(block, l, block.gradient, block.other);
    if (is_last && call.grad_envelope) gradient_of_envelope(block, block.gradient, block.other);
    if (is_last) scale_by_envelope(block, block.gradient, shared.last().out, row);
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
      for (int64_t o = 0; o < shared.call.layers[l].out; ++o)
        layer.grad_weight[o * layer.in + input] = total(input * row + shared.place(l, o));
    if (layer.grad_bias && input == 0)
      for (int64_t o = 0; o < shared.call.layers[l].out; ++o)
        layer.grad_bias[o] = total(bias * row + shared.place(l, o));
    start += (bias + 1) * row;
  }
}

}  // namespace POPGEO_ISA
}  // namespace popgeo
#endif
