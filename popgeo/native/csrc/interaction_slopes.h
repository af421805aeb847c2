// Filters that are kept beside their slopes along the distance: then forces need no layer again, only products of rows,
// and two edges that run in opposite directions over one distance share both. Included by interaction.cpp.
//
// A filter is N(r) times the envelope; of each position N(r) and N'(r) are kept, side by side, without the envelope. What
// is an edge's own, and so may differ between the two directions, are three factors: the envelope, how it changes, and how
// the distance changes times the envelope.
#pragma once

#include "interaction_second.h"
#include "interaction_sums.h"

#ifdef POPGEO_HAS_FMA
namespace popgeo {
namespace POPGEO_ISA {

inline void fill_factors(const Shared& shared, int64_t position) {
  const InteractionCall& call = shared.call;
  const int32_t* edges = shared.part(shared.plan.edges());
  const bool are_twins = joins_twins(call.plan);
  for (int64_t way = 0; way < 2; ++way) {
    const int64_t e = edges[position + (are_twins && way ? shared.num_active : 0)];
    float* to = shared.factors[way] + FACTORS * position;
    to[0] = call.envelope ? call.envelope[e] : 1.0f;
    to[1] = call.along_envelope ? call.along_envelope[e] : 0.0f;
    to[2] = call.along_expansion ? to[0] * call.along_expansion[e] : 0.0f;
  }
}

// Values, slopes, and how both change along the distance, of each hidden layer of a block.
inline void apply_hidden_layers_twice(SecondBlock& block) {
  const Shared& shared = block.shared;
  expand(block);
  expand_slant(block);
  for (int64_t l = 0; l + 1 < shared.call.num_layers; ++l) {
    apply_layer(block, l, block.values[l], padded(shared.layer(l).out));
    apply_layer(block, l, block.tangent(l), nullptr, block.tangents[l], padded(shared.layer(l).out));
    activate_rows(shared.call.activation, block.values[l], block.slopes[l], block.tangents[l], block.bends[l],
                  block.results(l));
  }
}

inline void make_filters_and_slopes(const Shared& shared, int64_t index, int64_t thread) {
  SecondBlock block(shared, index, thread);
  apply_hidden_layers_twice(block);
  const int64_t last = shared.call.num_layers - 1, row = shared.row, made = up_to_vector(shared.last().out);
  float* filters = shared.call.filters + block.first * 2 * row;
  apply_layer(block, last, filters, 2 * row);
  apply_layer(block, last, block.tangent(last), nullptr, filters + row, 2 * row);
  if (made < row)  // what stands between rows is multiplied with zeros, and must be a number
    for (int64_t half = 0; half < 2 * block.rows(); ++half)
      memset(filters + half * row + made, 0, sizeof(float) * size_t(row - made));
}

// What a message is: features times filters, times how these change, or both, with how the features change.
enum SlopeMessage { VALUES, CHANGES, VALUES_AND_CHANGES };

template <int VECTORS, SlopeMessage KIND>
inline void add_slope_messages(floats* sums, Arrivals arrivals, int64_t index, const float* features, const float* along,
                               const float* filters, const float* factors, int64_t row) {
  constexpr int64_t AHEAD = 8;
  const int32_t* pairs = arrivals.pairs;
  const int64_t end = arrivals.rowptr[index + 1];
  for (int64_t p = arrivals.rowptr[index]; p < end; ++p) {
    const int64_t later = p + AHEAD < end ? p + AHEAD : end - 1;
    const float* next = filters + pairs[2 * later] * 2 * row;
#pragma GCC unroll 8
    for (int offset = 0; offset < VECTORS * LANES; offset += 16) {
      __builtin_prefetch(next + offset, 0, 3);
      if (KIND != VALUES) __builtin_prefetch(next + row + offset, 0, 3);
    }
    const float *filter = filters + pairs[2 * p] * 2 * row, *slope = filter + row;
    const float *feature = features + pairs[2 * p + 1] * row, *change = along + pairs[2 * p + 1] * row;
    const float* own = factors + FACTORS * pairs[2 * p];
    const floats envelope = splat(own[0]), by_envelope = splat(own[1]), by_distance = splat(own[2]);
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) {
      const floats value = load(filter + v * LANES);
      if (KIND != VALUES) {
        const floats changed = fma(load(slope + v * LANES), by_distance, value * by_envelope);
        sums[v] = fma(load(feature + v * LANES), changed, sums[v]);
      }
      if (KIND == VALUES) sums[v] = fma(load(feature + v * LANES), value * envelope, sums[v]);
      if (KIND == VALUES_AND_CHANGES) sums[v] = fma(load(change + v * LANES), value * envelope, sums[v]);
    }
  }
}

// out[index] = the messages that arrive there: at a receiver, or back at a source; both where positions stand for two edges.
template <SlopeMessage KIND>
inline void sum_slope_row(const Shared& shared, int64_t index, const float* features, const float* along, bool at_sources,
                          float* to) {
  const InteractionPlan& plan = shared.plan;
  const Arrivals at_receiver = {shared.part(plan.receiver_rowptr()), shared.part(plan.receiver_pairs())};
  const Arrivals at_source = {shared.part(plan.source_rowptr()), shared.part(plan.source_pairs())};
  const Arrivals both[2] = {at_sources ? at_source : at_receiver, at_sources ? at_receiver : at_source};
  for (int64_t c = 0; c < shared.channels; c += SUM_VECTORS * LANES) {
    const int64_t left = shared.channels - c, width = left < SUM_VECTORS * LANES ? left : SUM_VECTORS * LANES;
    const auto sum = [&](auto vectors) {
      constexpr int COUNT = decltype(vectors)::count;
      floats sums[COUNT] = {};
      for (int64_t way = 0; way < 1 + shared.both_ways; ++way)
        add_slope_messages<COUNT, KIND>(sums, both[way], index, features + c, along ? along + c : features + c,
                                        shared.call.filters + c, shared.factors[way], shared.row);
      float whole[COUNT * LANES];
#pragma GCC unroll 8
      for (int v = 0; v < COUNT; ++v) store(whole + v * LANES, sums[v]);
      memcpy(to + index * shared.channels + c, whole, sizeof(float) * size_t(width));
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

// The gradients of distances and envelopes: products of rows with filters and slopes, for each way on its own.
inline void gradients_of_edges(const Block& block) {
  const Shared& shared = block.shared;
  const InteractionCall& call = shared.call;
  const bool are_twins = joins_twins(call.plan);
  const int32_t* sources = shared.part(shared.plan.sources()) + block.first;
  const int32_t* receivers = shared.part(shared.plan.receivers()) + block.first;
  const Span lines = {0, (shared.channels + LINE - 1) / LINE * LINE};
  const auto put = [&](float* to, int64_t i, const float* filter, float factor, float other_factor) {
    const int64_t row = shared.row;
    const float *from = shared.x + sources[i] * row, *at = shared.grad + receivers[i] * row;
    const auto product = [&](const float* x, const float* grad) {
      return sum_in_chains(lines, [&](int64_t c, floats sum) { return fma(load(x + c) * load(grad + c), load(filter + c), sum); });
    };
    const float there = factor * product(from, at);
    if (!shared.both_ways) {
      to[block.edges[i]] = there;
      return;
    }
    const float back = other_factor * product(shared.x + receivers[i] * row, shared.grad + sources[i] * row);
    to[block.edges[i]] = are_twins ? there : there + back;
    if (are_twins) to[block.edges[i + shared.num_active]] = back;
  };
  for (int64_t i = 0; i < block.count; ++i) {
    const float* filter = call.filters + (block.first + i) * 2 * shared.row;
    const int64_t own = FACTORS * (block.first + i);
    if (call.grad_expansion)
      put(call.grad_expansion, i, filter + shared.row, shared.factors[0][own], shared.factors[1][own]);
    if (call.grad_envelope) put(call.grad_envelope, i, filter, 1.0f, 1.0f);
  }
}

// What the gradients are of each filter of a block, without its envelope, and of its slope.
inline void gradients_of_filters_and_slopes(const SecondBlock& block) {
  const Shared& shared = block.shared;
  const int32_t* sources = shared.part(shared.plan.sources()) + block.first;
  const int32_t* receivers = shared.part(shared.plan.receivers()) + block.first;
  const int64_t row = shared.row, channels = shared.channels;
  for (int64_t i = 0; i < block.count; ++i) {
    float *to = block.gradient + i * row, *to_slope = block.change + i * row;
    for (int64_t way = 0; way < 1 + shared.both_ways; ++way) {
      const int64_t from = (way ? receivers : sources)[i] * row, at = (way ? sources : receivers)[i] * row;
      const float* own = shared.factors[way] + FACTORS * (block.first + i);
      const floats envelope = splat(own[0]), by_envelope = splat(own[1]), by_distance = splat(own[2]);
      for (int64_t c = 0; c < channels; c += LANES) {
        const floats grad = load(shared.grad + at + c), x = load(shared.x + from + c);
        const floats changed = fma(load(shared.along_x + from + c), envelope, x * by_envelope) * grad;
        const floats by_slope = x * by_distance * grad;
        store(to + c, way ? load(to + c) + changed : changed);
        store(to_slope + c, way ? load(to_slope + c) + by_slope : by_slope);
      }
    }
  }
  memset(block.gradient + block.count * row, 0, sizeof(float) * size_t((block.rows() - block.count) * row));
  memset(block.change + block.count * row, 0, sizeof(float) * size_t((block.rows() - block.count) * row));
}

inline bool wants_weights(const InteractionCall& call) {
  bool wants = false;
  for (int64_t l = 0; l < call.num_layers; ++l) wants |= call.layers[l].grad_weight || call.layers[l].grad_bias;
  return wants;
}

// The second backward pass to the layers' weights.
inline void go_back_slopes_block(const Shared& shared, int64_t index, int64_t thread, float* partial) {
  SecondBlock block(shared, index, thread);
  apply_hidden_layers_twice(block);
  gradients_of_filters_and_slopes(block);
  float* end = partial + shared.partial_size;
  for (int64_t l = shared.call.num_layers - 1; l >= 0; --l) {
    end -= (up_to_group(shared.layer(l).in) + 1) * padded(shared.layer(l).out);
    add_bias_gradient(block, l, block.gradient, end + up_to_group(shared.layer(l).in) * padded(shared.layer(l).out));
    add_weight_gradient(block, l, block.gradient, block.input(l), end);
    add_weight_gradient(block, l, block.change, block.tangent(l), end);
    if (l == 0) return;
    go_back_layer(block, l, block.gradient, block.other);
    go_back_layer(block, l, block.change, block.other_change);
    go_back_both(block.results(l - 1), block.other, block.other_change, block.slopes[l - 1], block.bends[l - 1]);
    float *swapped = block.gradient, *swapped_change = block.change;
    block.gradient = block.other, block.other = swapped;
    block.change = block.other_change, block.other_change = swapped_change;
  }
}

// to[i] = what the filter of position i multiplies times what the gradients are of the sums that it enters.
inline void gradient_of_kept_filters(const Block& block, float* to) {
  const Shared& shared = block.shared;
  const int32_t* sources = shared.part(shared.plan.sources()) + block.first;
  const int32_t* receivers = shared.part(shared.plan.receivers()) + block.first;
  const int64_t row = shared.row;
  for (int64_t i = 0; i < block.count; ++i, to += row)
    for (int64_t way = 0; way < 1 + shared.both_ways; ++way) {
      const float* x = shared.x + (way ? receivers : sources)[i] * row;
      const float* grad = shared.grad + (way ? sources : receivers)[i] * row;
      const floats envelope = splat(shared.factors[way][FACTORS * (block.first + i)]);
      for (int64_t c = 0; c < shared.channels; c += LANES) {
        const floats product = load(x + c) * load(grad + c) * envelope;
        store(to + c, way ? load(to + c) + product : product);
      }
    }
  memset(to, 0, sizeof(float) * size_t((block.rows() - block.count) * row));
}

inline void go_back_kept_layers(const Shared& shared, int64_t index, int64_t thread, float* partial) {
  Block block(shared, index, thread);
  expand(block);
  apply_hidden_layers(block, true);
  gradient_of_kept_filters(block, block.gradient);
  float* end = partial + shared.partial_size;
  for (int64_t l = shared.call.num_layers - 1; l >= 0; --l) {
    end -= (up_to_group(shared.layer(l).in) + 1) * padded(shared.layer(l).out);
    add_bias_gradient(block, l, block.gradient, end + up_to_group(shared.layer(l).in) * padded(shared.layer(l).out));
    add_weight_gradient(block, l, block.gradient, block.input(l), end);
    if (l == 0) return;
    go_back_layer(block, l, block.gradient, block.other);
    go_back_activation(block.results(l - 1), block.other, block.slopes[l - 1]);
    float* swapped = block.gradient;
    block.gradient = block.other, block.other = swapped;
  }
}

// The backward pass: to what is an edge's own from what was kept, and to the layers' weights through them.
inline void go_back_kept_block(const Shared& shared, int64_t index, int64_t thread, float* partial) {
  const Block block(shared, index, thread);
  if (shared.call.grad_expansion || shared.call.grad_envelope) gradients_of_edges(block);
  if (wants_weights(shared.call)) go_back_kept_layers(shared, index, thread, partial);
}

}  // namespace POPGEO_ISA
}  // namespace popgeo
#endif
