// One block of edges of an interaction on its way from distances to filters, in memory that stays in cache; and what all
// blocks share. Included by interaction.cpp, which is compiled once per instruction set.
#pragma once

#include "activations.h"
#include "interaction.h"
#include "products.h"
#include "vectors.h"

#ifdef POPGEO_HAS_FMA
namespace popgeo {
namespace POPGEO_ISA {

inline int64_t up_to_vector(int64_t columns) { return (columns + LANES - 1) / LANES * LANES; }
inline int64_t up_to_group(int64_t rows) { return (rows + GROUP - 1) / GROUP * GROUP; }

// What every block of a call shares, and where the workspace holds it.
struct Shared {
  const InteractionCall& call;
  InteractionPlan plan;
  int64_t num_active, channels, section, row, x_row, grad_row, widest, block_edges;
  float *x, *grad, *along_x;           // with padded rows
  float* tangents;                     // of the filters, in the second backward pass
  float* factors[2];                   // of each position for either way: see interaction_slopes.h
  float *down[MAX_LAYERS];             // weights as [in, padded(out)]
  float *up[MAX_LAYERS];               // weights as [out, padded(in)]
  float *bias[MAX_LAYERS], *centres;
  float *partials, *threads;
  Layer layers[MAX_LAYERS];  // as they lie in memory: sections of the last one's results start on lines of it
  int64_t partial_size, thread_size, size;
  bool both_ways;  // whether an edge stands for both directions
  bool keeps_slopes;
  bool has_bands;  // whether Gaussians that are exactly 0 are left out
  float reach;     // beyond which they are

  const Layer& layer(int64_t l) const { return layers[l]; }
  const Layer& last() const { return layers[call.num_layers - 1]; }
  bool has_vectors() const { return call.direction != nullptr; }
  // Where result `o` of layer l lies in a row.
  int64_t place(int64_t l, int64_t o) const {
    return l == call.num_layers - 1 && has_vectors() ? o / channels * section + o % channels : o;
  }
  const int32_t* part(int64_t start) const { return call.plan + start; }
  int64_t input_row() const { return padded(layer(0).in); }

  Shared(const InteractionCall& given, int64_t active)
      : call(given), plan{given.num_edges, given.num_sources, given.num_rows}, num_active(active) {
    both_ways = call.half_list || joins_twins(call.plan);
    keeps_slopes = call.keeps_slopes;
    const bool changes = call.is_second || (keeps_slopes && !call.grad);
    block_edges = changes ? SECOND_EDGES : BLOCK_EDGES;
    memcpy(layers, call.layers, sizeof(layers));
    int64_t& width = layers[call.num_layers - 1].out;
    channels = has_vectors() ? width / FILTER_SECTIONS : width;
    section = has_vectors() ? (channels + LINE - 1) / LINE * LINE : padded(channels);
    if (has_vectors()) width = FILTER_SECTIONS * section;
    row = padded(width);
    x_row = has_vectors() ? FEATURE_SECTIONS * section : row;
    grad_row = has_vectors() ? RESULT_SECTIONS * section : row;
    widest = input_row();
    for (int64_t l = 0; l < call.num_layers; ++l)
      if (padded(layer(l).out) > widest) widest = padded(layer(l).out);
    float* free = call.workspace;
    const auto take = [&](int64_t count) {
      float* start = free;
      free += count;
      return start;
    };
    x = take(call.num_sources * x_row);
    grad = take(call.num_rows * grad_row);
    along_x = take(call.is_second ? call.num_sources * x_row : 0);
    tangents = take(call.is_second && !keeps_slopes ? up_to_group(call.num_edges) * row : 0);
    for (float*& of_way : factors) of_way = take(keeps_slopes ? FACTORS * call.num_edges : 0);
    centres = take(input_row());
    partial_size = 0;
    for (int64_t l = 0; l < call.num_layers; ++l) {
      down[l] = take(layer(l).in * padded(layer(l).out));
      up[l] = take(layer(l).out * padded(layer(l).in));
      bias[l] = take(padded(layer(l).out));
      partial_size += (up_to_group(layer(l).in) + 1) * padded(layer(l).out);
    }
    partials = take(partial_size * num_partials(num_active));
    // The expansion; values and slopes of each hidden layer; two gradients. In the second backward pass, and
    // where slopes are made, everything changes along something, too, and there is one row more for what makes the filters' change.
    thread_size = block_edges * (changes + 1) * (input_row() + 2 * (call.num_layers - 1) * widest + 2 * widest);
    if (changes) thread_size += block_edges * widest;
    threads = take(thread_size * call.num_threads);
    size = free - call.workspace;
  }
};

inline void copy_padded(float* to, const float* from, int64_t count, int64_t row) {
  memcpy(to, from, sizeof(float) * size_t(count));
  memset(to + count, 0, sizeof(float) * size_t(row - count));
}

// One row of features or of results; zeros where there is none.
inline void copy_sections(const Shared& shared, float* to, const float* from, int64_t node, int64_t row) {
  const int64_t sections = row / shared.section;
  for (int64_t s = 0; s < sections; ++s)
    copy_padded(to + node * row + s * shared.section, from ? from + (node * sections + s) * shared.channels : to,
                from ? shared.channels : 0, shared.section);
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
    const int64_t width = shared.layer(l).out, down_row = padded(width), up_row = padded(layer.in);
    memset(shared.down[l], 0, sizeof(float) * size_t(layer.in * down_row));
    memset(shared.bias[l], 0, sizeof(float) * size_t(down_row));
    if (is_backward && width > layer.out) memset(shared.up[l], 0, sizeof(float) * size_t(width * up_row));
    for (int64_t o = 0; o < layer.out; ++o) {
      const int64_t place = shared.place(l, o);
      for (int64_t i = 0; i < layer.in; ++i) shared.down[l][i * down_row + place] = layer.weight[o * layer.in + i];
      if (is_backward) copy_padded(shared.up[l] + place * up_row, layer.weight + o * layer.in, layer.in, up_row);
      if (layer.bias) shared.bias[l][place] = layer.bias[o];
    }
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
  float *expansion, *values[MAX_LAYERS], *slopes[MAX_LAYERS], *gradient, *other, *free;
  Span inputs[BLOCK_EDGES / GROUP];  // of each group of edges: which inputs of the network are not all 0

  Block(const Shared& s, int64_t block, int64_t thread) : shared(s), first(block * s.block_edges) {
    const int64_t left = s.num_active - first;
    count = left < s.block_edges ? left : s.block_edges;
    edges = s.part(s.plan.edges()) + first;
    free = s.threads + thread * s.thread_size;
    expansion = take(s.input_row());
    for (int64_t l = 0; l + 1 < s.call.num_layers; ++l) values[l] = take(s.widest), slopes[l] = take(s.widest);
    gradient = take(s.widest), other = take(s.widest);
  }

  // What there is of the rows of layer l's results; the rest of each is memory between them.
  Rows results(int64_t l) const {
    return {rows(), up_to_vector(shared.layer(l).out), padded(shared.layer(l).out)};
  }
  float* take(int64_t row) {
    float* start = free;
    free += shared.block_edges * row;
    return start;
  }

  int64_t rows() const { return up_to_group(count); }
  const float* input(int64_t l) const { return l ? values[l - 1] : expansion; }
  int64_t input_row(int64_t l) const { return padded(shared.layer(l).in); }
  // Which of the inputs of layer l may be other than 0 for edge i.
  Span inputs_of(int64_t l, int64_t i) const { return l ? Span{0, shared.layer(l).in} : inputs[i / GROUP]; }
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

// Where a row of the expansion is not 0, in whole lines of memory.
inline Span lines_of_inputs(const Block& block, int64_t i) {
  const Span span = block.inputs[i / GROUP];
  return {span.begin / LINE * LINE, (span.end + LINE - 1) / LINE * LINE};
}

// d r of what the Gaussians of edge i are multiplied with.
inline float slope_of_expansion(const Block& block, int64_t i, const float* gradient) {
  const Shared& shared = block.shared;
  const floats r = splat(shared.call.expansion[block.edges[i]]);
  const float* values = block.expansion + i * shared.input_row();
  const float total = sum_in_chains(lines_of_inputs(block, i), [&](int64_t k, floats sum) {
    return fma(load(gradient + k) * load(values + k), r - load(shared.centres + k), sum);
  });
  return 2.0f * float(shared.call.width) * total;
}

// What the gradient of a block's first layer is by its inputs, where they are not 0.
inline void gradient_of_inputs(const Block& block, const float* gradient, float* to) {
  const Shared& shared = block.shared;
  const int64_t row = padded(shared.layer(0).out), input_row = shared.input_row();
  for (int64_t group = 0; group * GROUP < block.count; ++group) {
    const Span lines = lines_of_inputs(block, group * GROUP), all = {0, shared.layer(0).out};
    product<false>(GROUP, lines.end - lines.begin, gradient + group * GROUP * row, row, shared.up[0] + lines.begin,
                   input_row, &all, nullptr, to + group * GROUP * input_row + lines.begin, input_row, false);
  }
}

// Filters -----------------------------------------------------------------------------------------------------------

inline void apply_layer(const Block& block, int64_t l, const float* input, const float* bias, float* to, int64_t to_row) {
  const Layer& layer = block.shared.layer(l);
  Span all[BLOCK_EDGES / GROUP];
  for (Span& span : all) span = {0, layer.in};
  product<false>(block.rows(), layer.out, input, block.input_row(l), block.shared.down[l], padded(layer.out),
                 l ? all : block.inputs, bias, to, to_row, false);
}

inline void apply_layer(const Block& block, int64_t l, float* to, int64_t to_row) {
  apply_layer(block, l, block.input(l), block.shared.bias[l], to, to_row);
}

inline void apply_hidden_layers(const Block& block, bool with_slopes) {
  for (int64_t l = 0; l + 1 < block.shared.call.num_layers; ++l) {
    const int64_t row = padded(block.shared.layer(l).out);
    apply_layer(block, l, block.values[l], row);
    activate_rows(block.shared.call.activation, block.values[l], with_slopes ? block.slopes[l] : nullptr, nullptr,
                  nullptr, block.results(l));
  }
}

inline void scale_by_envelope(const Block& block, float* values, int64_t columns, int64_t row) {
  if (!block.shared.call.envelope) return;
  for (int64_t i = 0; i < block.count; ++i, values += row) {
    const floats factor = splat(block.envelope(i));
    for (int64_t c = 0; c < columns; c += LANES) store(values + c, load(values + c) * factor);
  }
}

inline void make_filters(const Shared& shared, int64_t index, int64_t thread) {
  Block block(shared, index, thread);
  expand(block);
  apply_hidden_layers(block, false);
  float* filters = shared.call.filters + block.first * shared.row;
  apply_layer(block, shared.call.num_layers - 1, filters, shared.row);
  scale_by_envelope(block, filters, shared.last().out, shared.row);
}

}  // namespace POPGEO_ISA
}  // namespace popgeo
#endif
