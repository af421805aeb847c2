// The C functions of an interaction: they check their arguments, sort the edges by distance, and call the kernels of the
// newest instruction set of the processor. None allocates memory or throws. The inputs of a plan may be at any address.
#include <algorithm>
#include <cstring>

#include "aligned.h"
#include "interaction.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace popgeo {

extern int64_t chosen_isa;

#ifdef POPGEO_HAS_V3
namespace v3 {
extern const InteractionKernels interaction_kernels;
}
#endif
#ifdef POPGEO_HAS_V4
namespace v4 {
extern const InteractionKernels interaction_kernels;
}
#endif

// The kernels for this processor; null without fused multiply-adds, because other arithmetic gives different bits.
inline const InteractionKernels& interaction_kernels() {
#ifdef POPGEO_HAS_V4
  if (chosen_isa == 2) return v4::interaction_kernels;
#endif
#ifdef POPGEO_HAS_V3
  if (chosen_isa >= 1) return v3::interaction_kernels;
#endif
  return POPGEO_ISA::interaction_kernels;
}

struct InteractionPlanCall {
  const int64_t *src, *dst;
  const void* distances;
  int32_t* plan;
  void* weights;
  int64_t num_edges, num_sources, num_rows, num_points, is_double;
  double cutoff;
};

inline bool all_below(const int64_t* values, int64_t count, int64_t limit) {
  uint64_t outside = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t value = uint64_t(number_at(values, i));
    outside |= value | (uint64_t(limit) - 1 - value);
  }
  return int64_t(outside) >= 0;
}

inline bool all_below(const int32_t* values, int64_t count, int64_t limit) {
  uint32_t outside = 0;
  for (int64_t i = 0; i < count; ++i) outside |= uint32_t(values[i]) | (uint32_t(limit) - 1 - uint32_t(values[i]));
  return int32_t(outside) >= 0;
}

// The factors of Lagrange's polynomial through the points 0, 1, ... at one place: products of all differences but one.
template <class T>
inline void weigh_points(double at, T* weights) {
  static constexpr double DIVISORS[POINTS] = {-5040, 720, -240, 144, -144, 240, -720, 5040};
  double before[POINTS];
  double product = 1;
  for (int64_t k = 0; k < POINTS; ++k) {
    before[k] = product;
    product *= at - double(k);
  }
  product = 1;
  for (int64_t k = POINTS - 1; k >= 0; --k) {
    weights[k] = T(before[k] * product / DIVISORS[k]);
    product *= at - double(k);
  }
}

// Writes for each edge the least numbers of the atoms of this edge and all later ones.
template <class IsPresent>
inline void note_least(const InteractionPlanCall& call, IsPresent is_present, int32_t* sources, int32_t* receivers) {
  int32_t source = INT32_MAX, receiver = INT32_MAX;
  for (int64_t e = call.num_edges - 1; e >= 0; --e) {
    if (is_present(e)) {
      source = std::min(source, int32_t(number_at(call.src, e)));
      receiver = std::min(receiver, int32_t(number_at(call.dst, e)));
    }
    sources[e] = source;
    receivers[e] = receiver;
  }
}

template <class T>
inline void make_plan(const InteractionPlanCall& call) {
  const InteractionPlan parts{call.num_edges, call.num_points};
  int32_t* const plan = call.plan;
  int32_t *edges = plan + parts.edges(), *windows = plan + parts.windows();
  int32_t *sources = plan + parts.sources(), *receivers = plan + parts.receivers();
  const T* distances = static_cast<const T*>(call.distances);
  T* weights = static_cast<T*>(call.weights);
  const double per_unit = double(call.num_points - 1) / call.cutoff;
  const int64_t last = parts.num_windows() - 1;
  const T end = T(call.cutoff);  // rounded like the distances of absent edges, which are the cutoff
  const auto window_of = [&](double place) -> int64_t {
    if (!(place >= 0)) return 0;  // also for NaN
    const int64_t window = (place < double(call.num_points) ? int64_t(place) : call.num_points) - (POINTS / 2 - 1);
    return window < 0 ? 0 : window < last ? window : last;
  };
  int32_t listed[BLOCK_EDGES], window_listed[BLOCK_EDGES];
  int32_t starts[MAX_POINTS];
  int32_t *least_source = plan + parts.sources(), *least_receiver = plan + parts.receivers();
  const auto is_present = [&](int64_t e) { return !(number_at(distances, e) >= end); };
  note_least(call, is_present, least_source, least_receiver);
  int32_t most_source = -1, most_receiver = -1;  // of the edges so far
  int64_t e = 0, first = 0;
  while (e < call.num_edges) {
    int64_t count = 0;
    memset(starts, 0, sizeof(int32_t) * size_t(last + 2));
    for (; e < call.num_edges && count < BLOCK_EDGES; ++e) {
      if (!is_present(e)) continue;
      // The entries of e are still there, because edges are written to earlier positions than their own.
      if (count && least_source[e] > most_source && least_receiver[e] > most_receiver) break;
      most_source = std::max(most_source, int32_t(number_at(call.src, e)));
      most_receiver = std::max(most_receiver, int32_t(number_at(call.dst, e)));
      const T distance = number_at(distances, e);
      listed[count] = int32_t(e);
      window_listed[count] = int32_t(window_of(double(distance) * per_unit));
      ++starts[window_listed[count++] + 1];
    }
    for (int64_t window = 0; window <= last; ++window) starts[window + 1] += starts[window];
    for (int64_t i = 0; i < count; ++i) {
      const int64_t position = first + starts[window_listed[i]]++, edge = listed[i];
      edges[position] = int32_t(edge);
      windows[position] = window_listed[i];
      sources[position] = int32_t(number_at(call.src, edge));
      receivers[position] = int32_t(number_at(call.dst, edge));
      const double place = double(number_at(distances, edge)) * per_unit;
      weigh_points(place - double(window_listed[i]), weights + POINTS * position);
    }
    first += count;
  }
  plan[0] = int32_t(first);
  plan[1] = int32_t(call.num_edges);
  plan[2] = int32_t(call.num_sources);
  plan[3] = int32_t(call.num_rows);
  plan[4] = int32_t(call.num_points);
}

// Checks that a plan names only existing edges, nodes and points, so that kernels stay within their arrays.
inline bool is_safe(const InteractionCall& call) {
  const InteractionPlan parts{call.num_edges, call.num_points};
  const int32_t *plan = call.plan, count = plan[0];
  if (count < 0 || count > call.num_edges || plan[1] != call.num_edges || plan[2] != call.num_sources) return false;
  if (plan[3] != call.num_rows || plan[4] != call.num_points) return false;
  return all_below(plan + parts.edges(), count, call.num_edges) &&
         all_below(plan + parts.windows(), count, parts.num_windows()) &&
         all_below(plan + parts.sources(), count, call.num_sources) &&
         all_below(plan + parts.receivers(), count, call.num_rows);
}

}  // namespace popgeo

// Returns whether this processor has kernels for interactions.
EXPORT int64_t popgeo_interaction_is_served() { return popgeo::interaction_kernels().run != nullptr; }

EXPORT int64_t popgeo_interaction_plan(const popgeo::InteractionPlanCall* packed) {
  const popgeo::InteractionPlanCall call = *packed;
  if (!popgeo::all_below(call.src, call.num_edges, call.num_sources) ||
      !popgeo::all_below(call.dst, call.num_edges, call.num_rows))
    return 1;
  (call.is_double ? popgeo::make_plan<double> : popgeo::make_plan<float>)(call);
  return 0;
}

// Returns the bytes of a call's workspace, for any pass.
EXPORT int64_t popgeo_interaction_workspace(const popgeo::InteractionCall* packed) {
  return popgeo::interaction_kernels().workspace(*packed);
}

// Runs one pass of a call; returns 1 if its plan belongs to different edges or was changed.
EXPORT int64_t popgeo_interaction(const popgeo::InteractionCall* packed) {
  if (!popgeo::is_safe(*packed)) return 1;
  popgeo::interaction_kernels().run(*packed);
  return 0;
}
