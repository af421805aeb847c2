// Sums of the messages that arrive at a row, in the order of the edges. Included by interaction.cpp.
#pragma once

#include "interaction_block.h"

#ifdef POPGEO_HAS_FMA
namespace popgeo {
namespace POPGEO_ISA {

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
  const int64_t kinds = shared.both_ways ? 2 : 1;
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

}  // namespace POPGEO_ISA
}  // namespace popgeo
#endif
