// One block of edges in the backward pass of the backward pass. Included by interaction.cpp.
#pragma once

#include "interaction_back.h"

#ifdef POPGEO_HAS_FMA
namespace popgeo {
namespace POPGEO_ISA {

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
  if (!call.along_expansion && !shared.keeps_slopes) return;
  for (int64_t i = 0; i < block.count; ++i) {
    const int64_t e = block.edges[i];
    if (!call.centres) {
      memcpy(block.slant + i * row, call.along_expansion + e * num_inputs, sizeof(float) * size_t(num_inputs));
      continue;
    }
    const float change = shared.keeps_slopes ? 1.0f : call.along_expansion[e];
    const floats r = splat(call.expansion[e]), factor = splat(2.0f * float(call.width) * change);
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
    for (int64_t c = 0; c < shared.last().out; c += LANES)
      store(tangents + c, fma(load(shared.bias[l] + c), change, load(tangents + c)));
  }
}

// rows = rows * factor + other_rows * change, other_rows = other_rows * factor, with an edge's factor and its change.
inline void scale_both(const SecondBlock& block, float* rows, float* other_rows, int64_t columns, int64_t row) {
  for (int64_t i = 0; i < block.count; ++i) {
    const floats factor = splat(block.envelope(i)), change = splat(block.along_envelope(i));
    for (int64_t c = i * row; c < i * row + columns; c += LANES) {
      const floats other = load(other_rows + c);
      store(rows + c, fma(load(rows + c), factor, other * change));
      store(other_rows + c, other * factor);
    }
  }
}

// Both gradients of the filters become those of the bare network's results; the envelope's is what it multiplies. Those of
// the last layer's inputs are made on the way, where they are needed.
inline void leave_envelope(SecondBlock& block) {
  const Shared& shared = block.shared;
  const int64_t l = shared.call.num_layers - 1, input_row = block.input_row(l), row = shared.row;
  if (goes_on(shared.call, l)) {
    go_back_layer(block, l, block.gradient, block.other);
    go_back_layer(block, l, block.change, block.other_change);
  }
  if (shared.call.grad_envelope) {
    gradient_of_envelope(block, block.gradient, block.other);
    for (int64_t i = 0; i < block.count; ++i)
      shared.call.grad_envelope[block.edges[i]] +=
          dot(block.other_change + i * input_row, block.tangent(l) + i * input_row, block.inputs_of(l, i));
  }
  if (goes_on(shared.call, l)) scale_both(block, block.other, block.other_change, shared.layer(l).in, input_row);
  scale_both(block, block.gradient, block.change, shared.last().out, row);
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
  if (call.along_direction)
    gradient_of_vector_filters(block, shared.x, call.along_direction, true, block.gradient);
  gradient_of_filters(block, shared.x, shared.grad, block.change);
  gradient_of_directions(block);
  leave_envelope(block);
  float* end = partial + shared.partial_size;
  for (int64_t l = call.num_layers - 1; l >= 0; --l) {
    end -= (up_to_group(shared.layer(l).in) + 1) * padded(shared.layer(l).out);
    add_bias_gradient(block, l, block.gradient, end + up_to_group(shared.layer(l).in) * padded(shared.layer(l).out));
    add_weight_gradient(block, l, block.gradient, block.input(l), end);
    add_weight_gradient(block, l, block.change, block.tangent(l), end);
    if (l == 0 && !call.grad_expansion) return;
    if (l < call.num_layers - 1) {
      go_back_layer(block, l, block.gradient, block.other);
      go_back_layer(block, l, block.change, block.other_change);
    }
    if (l) go_back_both(block.results(l - 1), block.other, block.other_change, block.slopes[l - 1], block.bends[l - 1]);
    float *swapped = block.gradient, *swapped_change = block.change;
    block.gradient = block.other, block.other = swapped;
    block.change = block.other_change, block.other_change = swapped_change;
  }
  second_gradient_of_expansion(block);
}

}  // namespace POPGEO_ISA
}  // namespace popgeo
#endif
