// Messages of scalars and vectors, with how they change in the second backward pass. Included by interaction.cpp.
//
// With features (a, b, c), a filter (u, v, w) and a direction d, a message is a u, and along each axis b v + c w d. What
// goes back to the source by the gradient (s, g) of a result is s u, v g along each axis, and w <d, g>.
#pragma once

#include "interaction_block.h"

#ifdef POPGEO_HAS_FMA
namespace popgeo {
namespace POPGEO_ISA {

constexpr int AXES = 3;

// Edges that meet a row at one end; directions of those that go the other way are turned around.
struct VectorArrivals {
  const int32_t *pairs, *end;
  float sign;
};

struct Axes {
  floats of[AXES];
};

inline Axes axes_of(const float* directions, int64_t edge, float sign) {
  Axes axes = {};
  for (int k = 0; directions && k < AXES; ++k) axes.of[k] = splat(sign * directions[AXES * edge + k]);
  return axes;
}

// <d, g> of vectors along the edge and of a gradient's three axes.
inline floats along(const Axes& axes, const float* gradient, int64_t section) {
  const floats two = fma(axes.of[1], load(gradient + section), axes.of[0] * load(gradient));
  return fma(axes.of[2], load(gradient + 2 * section), two);
}

// Adds the messages of some edges, for a few vectors of each section; how they change where `CHANGES`.
template <bool CHANGES, int VECTORS>
inline void add_vector_messages(const Shared& shared, const VectorArrivals& from, int64_t column,
                                floats (*sums)[VECTORS]) {
  const int64_t section = shared.section;
  const int32_t* edges = shared.part(shared.plan.edges());
  for (const int32_t* pair = from.pairs; pair < from.end; pair += 2) {
    const int64_t at = pair[0] * shared.row + column, node = pair[1] * shared.x_row + column;
    const Axes d = axes_of(shared.call.direction, edges[pair[0]], from.sign);
    const float *filter = shared.call.filters + at, *x = shared.x + node;
    const float *other_filter = CHANGES ? shared.tangents + at : nullptr, *other_x = CHANGES ? shared.along_x + node : nullptr;
    const Axes other_d = axes_of(CHANGES ? shared.call.along_direction : nullptr, edges[pair[0]], from.sign);
#pragma GCC unroll 4
    for (int i = 0; i < VECTORS; ++i) {
      const int64_t o = i * LANES;
      const auto times = [&](int64_t feature, int64_t part, floats sum) {
        if (!CHANGES) return fma(load(x + feature * section + o), load(filter + part * section + o), sum);
        sum = fma(load(other_x + feature * section + o), load(filter + part * section + o), sum);
        return fma(load(x + feature * section + o), load(other_filter + part * section + o), sum);
      };
      const floats sent = times(4, 2, floats{});
      const floats still = CHANGES ? load(x + 4 * section + o) * load(filter + 2 * section + o) : floats{};
      sums[0][i] = times(0, 0, sums[0][i]);
      for (int k = 0; k < AXES; ++k) {
        const floats sum = fma(sent, d.of[k], times(1 + k, 1, sums[1 + k][i]));
        sums[1 + k][i] = CHANGES ? fma(still, other_d.of[k], sum) : sum;
      }
    }
  }
}

// Adds what goes back from some edges' receivers.
template <bool CHANGES, int VECTORS>
inline void add_vector_gradients(const Shared& shared, const VectorArrivals& from, int64_t column,
                                 floats (*sums)[VECTORS]) {
  const int64_t section = shared.section;
  const int32_t* edges = shared.part(shared.plan.edges());
  for (const int32_t* pair = from.pairs; pair < from.end; pair += 2) {
    const int64_t at = pair[0] * shared.row + column;
    const Axes d = axes_of(shared.call.direction, edges[pair[0]], from.sign);
    const Axes other_d = axes_of(CHANGES ? shared.call.along_direction : nullptr, edges[pair[0]], from.sign);
    const float* filter = (CHANGES ? shared.tangents : shared.call.filters) + at;
    const float *still = shared.call.filters + at, *gradient = shared.grad + pair[1] * shared.grad_row + column;
#pragma GCC unroll 4
    for (int i = 0; i < VECTORS; ++i) {
      const float *of = gradient + i * LANES, *by = filter + i * LANES;
      sums[0][i] = fma(load(of), load(by), sums[0][i]);
      for (int k = 0; k < AXES; ++k)
        sums[1 + k][i] = fma(load(of + (1 + k) * section), load(by + section), sums[1 + k][i]);
      sums[4][i] = fma(along(d, of + section, section), load(by + 2 * section), sums[4][i]);
      if (CHANGES)
        sums[4][i] = fma(along(other_d, of + section, section), load(still + i * LANES + 2 * section), sums[4][i]);
    }
  }
}

// What arrives at a receiver, or where `BACK` comes back to a source.
template <bool BACK, bool CHANGES>
inline void sum_vector_row(const Shared& shared, int64_t index, float* to) {
  constexpr int VECTORS = LINE / LANES < 2 ? LINE / LANES : 2;
  constexpr int64_t SECTIONS = BACK ? FEATURE_SECTIONS : RESULT_SECTIONS, WIDTH = VECTORS * LANES;
  const InteractionPlan& plan = shared.plan;
  const auto arrivals = [&](int64_t rowptr, int64_t pairs, float sign) {
    const int32_t *starts = shared.part(rowptr) + index, *first = shared.part(pairs);
    return VectorArrivals{first + 2 * starts[0], first + 2 * starts[1], sign};
  };
  const auto add = [&](const VectorArrivals& from, int64_t column, floats(*sums)[VECTORS]) {
    if (BACK)
      add_vector_gradients<CHANGES, VECTORS>(shared, from, column, sums);
    else
      add_vector_messages<CHANGES, VECTORS>(shared, from, column, sums);
  };
  for (int64_t c = 0; c < shared.channels; c += WIDTH) {
    floats sums[SECTIONS][VECTORS] = {};
    for (int64_t kind = 0; kind < (shared.call.half_list ? 2 : 1); ++kind) {
      const float sign = kind ? -1.0f : 1.0f;
      const bool at_source = BACK != (kind == 1);
      add(at_source ? arrivals(plan.source_rowptr(), plan.source_pairs(), sign)
                    : arrivals(plan.receiver_rowptr(), plan.receiver_pairs(), sign),
          c, sums);
    }
    const int64_t left = shared.channels - c, width = left < WIDTH ? left : WIDTH;
    for (int64_t s = 0; s < SECTIONS; ++s) {
      float whole[WIDTH];
      for (int i = 0; i < VECTORS; ++i) store(whole + i * LANES, sums[s][i]);
      memcpy(to + (index * SECTIONS + s) * shared.channels + c, whole, sizeof(float) * size_t(width));
    }
  }
}

// The ends of an edge of a block, in the direction in which it is listed or the other one.
struct Ends {
  int64_t edge, source, receiver;
  float sign;
};

template <class Visit>
inline void visit_ends(const Block& block, int64_t i, Visit visit) {
  const Shared& shared = block.shared;
  const int64_t source = shared.part(shared.plan.sources())[block.first + i];
  const int64_t receiver = shared.part(shared.plan.receivers())[block.first + i];
  visit(Ends{block.edges[i], source, receiver, 1.0f}, false);
  if (shared.call.half_list) visit(Ends{block.edges[i], receiver, source, -1.0f}, true);
}

// to[i] = the gradient of edge i's filter by what it multiplies: (a s, <b, g>, c <d, g>). With how directions change in
// their place, only the last is made, and added.
inline void gradient_of_vector_filters(const Block& block, const float* x, const float* directions, bool adds_last,
                                       float* to) {
  const Shared& shared = block.shared;
  const int64_t section = shared.section, last = 2 * section;
  for (int64_t i = 0; i < block.count; ++i, to += shared.row)
    visit_ends(block, i, [&](const Ends& ends, bool adds) {
      const float *features = x + ends.source * shared.x_row, *gradient = shared.grad + ends.receiver * shared.grad_row;
      const Axes d = axes_of(directions, ends.edge, ends.sign);
      for (int64_t c = 0; c < section; c += LANES) {
        const float *of = gradient + section + c, *sent = features + section + c;
        const floats before = adds || adds_last ? load(to + last + c) : floats{};
        store(to + last + c, fma(load(sent + 3 * section), along(d, of, section), before));
        if (adds_last) continue;
        store(to + c, fma(load(features + c), load(gradient + c), adds ? load(to + c) : floats{}));
        floats sum = adds ? load(to + section + c) : floats{};
        for (int k = 0; k < AXES; ++k) sum = fma(load(sent + k * section), load(of + k * section), sum);
        store(to + section + c, sum);
      }
    });
  if (!adds_last) memset(to, 0, sizeof(float) * size_t((block.rows() - block.count) * shared.row));
}

// The gradient of each edge's direction, <c w, g> along each axis.
inline void gradient_of_directions(const Block& block) {
  const Shared& shared = block.shared;
  const int64_t section = shared.section;
  if (!shared.call.grad_direction) return;
  for (int64_t i = 0; i < block.count; ++i) {
    const int64_t at = (block.first + i) * shared.row + 2 * section;
    const float *filter = shared.call.filters + at, *other_filter = shared.tangents + at;
    visit_ends(block, i, [&](const Ends& ends, bool adds) {
      const float* gradient = shared.grad + ends.receiver * shared.grad_row + section;
      const float* sent = shared.x + ends.source * shared.x_row + 4 * section;
      const float* other_sent = shared.along_x + ends.source * shared.x_row + 4 * section;
      for (int64_t k = 0; k < AXES; ++k) {
        const float total = sum_in_chains({0, section}, [&](int64_t c, floats sum) {
          const floats of = load(gradient + k * section + c);
          if (!shared.call.is_second) return fma(load(sent + c) * load(filter + c), of, sum);
          return fma(fma(load(other_sent + c), load(filter + c), load(sent + c) * load(other_filter + c)), of, sum);
        });
        float& to = shared.call.grad_direction[AXES * ends.edge + k];
        to = ends.sign * total + (adds ? to : 0.0f);
      }
    });
  }
}

}  // namespace POPGEO_ISA
}  // namespace popgeo
#endif
