// The C functions of an interaction: they check what they are given, put the edges into the order in which filters are
// made, and call the kernels of the newest instruction set that the processor has. None allocates, none throws. What a
// plan is made of may stand at any address.
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

// The kernels for this processor; those without fused multiply-adds are null, since no other arithmetic has their bits.
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
  const float *envelope, *distances;  // or null
  int32_t* plan;
  int64_t num_edges, num_sources, num_rows, joins_twins;
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

// The edges of one block in order of their distance, more or less: Gaussians that are 0 for one are then 0 for the next
// ones too. order[i] is the place of the i-th edge; any order is right, and NaN may stand anywhere.
inline void order_by_distance(const float* distances, const int32_t* edges, int64_t count, int32_t* order) {
  constexpr int BUCKETS = 64;
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float distance = number_at(distances, edges[i]);
    if (distance > largest) largest = distance;
  }
  const float scale = float(BUCKETS - 1) / largest;
  int32_t bucket[BLOCK_EDGES], starts[BUCKETS + 1] = {};
  for (int64_t i = 0; i < count; ++i) {
    const float place = number_at(distances, edges[i]) * scale;
    bucket[i] = place >= 0 && place <= float(BUCKETS - 1) ? int32_t(place) : 0;
    ++starts[bucket[i] + 1];
  }
  for (int b = 0; b < BUCKETS; ++b) starts[b + 1] += starts[b];
  for (int64_t i = 0; i < count; ++i) order[i] = starts[bucket[i]]++;
}

// How many edges stand before those of each row: counts become starts.
inline void start_rows(const int32_t* rows, int64_t count, int32_t* rowptr, int64_t num_rows) {
  memset(rowptr, 0, sizeof(int32_t) * size_t(num_rows + 1));
  for (int64_t i = 0; i < count; ++i) ++rowptr[rows[i] + 1];
  for (int64_t row = 0; row < num_rows; ++row) rowptr[row + 1] += rowptr[row];
}

// Keeps one of each two edges that run in opposite directions over the same distance, in their order, and returns how many
// there are; 0, and all as they were, unless every edge has such a twin. Loops, as padding is made of, are twins of each
// other, in the order in which they come. `starts` and `lists` are memory to work in.
inline int32_t join_twins(const InteractionPlanCall& call, int32_t* edges, int32_t count, int32_t* starts, int32_t* lists) {
  const auto source = [&](int32_t e) { return int32_t(number_at(call.src, e)); };
  const auto receiver = [&](int32_t e) { return int32_t(number_at(call.dst, e)); };
  const auto same = [](const float* values, int32_t a, int32_t b) {
    const float first = values ? number_at(values, a) : 0, second = values ? number_at(values, b) : 0;
    return memcmp(&first, &second, sizeof(float)) == 0;
  };
  const auto are_alike = [&](int32_t a, int32_t b) { return same(call.distances, a, b) && same(call.envelope, a, b); };
  if (count % 2) return 0;
  memset(starts, 0, sizeof(int32_t) * size_t(call.num_rows + 1));
  for (int32_t i = 0; i < count; ++i) ++starts[receiver(edges[i]) + 1];
  for (int64_t row = 0; row < call.num_rows; ++row) starts[row + 1] += starts[row];
  for (int32_t i = 0; i < count; ++i) lists[starts[receiver(edges[i])]++] = edges[i];  // each start becomes the next one
  // The only edge from one node to another; -1 where there are several, which nobody can tell apart, or none.
  const auto only_edge = [&](int32_t from, int32_t to) {
    int32_t found = -1;
    for (int32_t at = to ? starts[to - 1] : 0; at < starts[to]; ++at) {
      if (source(lists[at]) != from) continue;
      if (found >= 0) return -1;
      found = lists[at];
    }
    return found;
  };
  int32_t kept = 0, loop = -1;
  int32_t *const first_ones = lists + count, *const second_ones = first_ones + count / 2;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t edge = edges[i], from = source(edge), to = receiver(edge);
    if (from == to && loop < 0) {
      loop = edge;
      continue;
    }
    const bool is_loop = from == to;
    const int32_t twin = !is_loop ? only_edge(to, from) : source(loop) == to ? loop : -1;
    if (twin < 0 || !are_alike(edge, twin)) return 0;
    if (is_loop) first_ones[kept] = twin, second_ones[kept++] = edge, loop = -1;
    if (!is_loop && edge < twin) first_ones[kept] = edge, second_ones[kept++] = twin;
  }
  memcpy(edges, first_ones, sizeof(int32_t) * size_t(kept));
  memcpy(edges + kept, second_ones, sizeof(int32_t) * size_t(kept));
  return kept;
}

inline void make_plan(const InteractionPlanCall& call) {
  const InteractionPlan parts{call.num_edges, call.num_sources, call.num_rows};
  int32_t* plan = call.plan;
  int32_t *edges = plan + parts.edges(), *sources = plan + parts.sources(), *receivers = plan + parts.receivers();
  int32_t *at_receiver = plan + parts.receiver_rowptr(), *at_source = plan + parts.source_rowptr();
  int32_t *to_receiver = plan + parts.receiver_pairs(), *to_source = plan + parts.source_pairs();
  int32_t count = 0;
  for (int64_t e = 0; e < call.num_edges; ++e) {
    edges[count] = int32_t(e);
    count += !call.envelope || !(number_at(call.envelope, e) == 0);
  }
  int32_t kept = 0;  // of twins; the arrivals that come later leave room for what it takes to find them
  if (call.joins_twins && call.distances && call.num_sources == call.num_rows)
    kept = join_twins(call, edges, count, at_receiver, to_receiver);
  if (kept) count = kept;
  plan[0] = count;
  plan[1] = kept ? ~int32_t(call.num_edges) : int32_t(call.num_edges);
  plan[2] = int32_t(call.num_sources);
  plan[3] = int32_t(call.num_rows);
  for (int64_t i = 0; i < count; ++i) {
    sources[i] = int32_t(number_at(call.src, edges[i]));
    receivers[i] = int32_t(number_at(call.dst, edges[i]));
  }
  start_rows(receivers, count, at_receiver, call.num_rows);
  start_rows(sources, count, at_source, call.num_sources);
  for (int64_t first = 0; first < count; first += BLOCK_EDGES) {
    const int64_t width = count - first < BLOCK_EDGES ? count - first : BLOCK_EDGES;
    int32_t order[BLOCK_EDGES], moved[BLOCK_EDGES];
    for (int64_t i = 0; i < width; ++i) order[i] = int32_t(i);
    if (call.distances) order_by_distance(call.distances, edges + first, width, order);
    for (int64_t i = 0; i < width; ++i) {  // a row meets its edges in the order in which they were given
      const int32_t position = int32_t(first) + order[i], source = sources[first + i], receiver = receivers[first + i];
      int32_t* pair = to_receiver + 2 * at_receiver[receiver]++;
      pair[0] = position, pair[1] = source;
      pair = to_source + 2 * at_source[source]++;
      pair[0] = position, pair[1] = receiver;
    }
    int32_t* const parts_of_block[] = {edges, sources, receivers, edges + count};
    for (int64_t which = 0; which < (kept ? 4 : 3); ++which) {
      int32_t* const part = parts_of_block[which];
      for (int64_t i = 0; i < width; ++i) moved[order[i]] = part[first + i];
      memcpy(part + first, moved, sizeof(int32_t) * size_t(width));
    }
  }
  // Each start has become the next one.
  memmove(at_receiver + 1, at_receiver, sizeof(int32_t) * size_t(call.num_rows));
  memmove(at_source + 1, at_source, sizeof(int32_t) * size_t(call.num_sources));
  at_receiver[0] = at_source[0] = 0;
}

inline bool rows_climb(const int32_t* rowptr, int64_t num_rows, int64_t count) {
  bool climb = rowptr[0] == 0 && rowptr[num_rows] == count;
  for (int64_t row = 0; row < num_rows; ++row) climb &= rowptr[row] <= rowptr[row + 1];
  return climb;
}

inline bool pairs_are_below(const int32_t* pairs, int64_t count, int64_t first_limit, int64_t second_limit) {
  uint32_t outside = 0;
  for (int64_t i = 0; i < 2 * count; i += 2) {
    outside |= uint32_t(pairs[i]) | (uint32_t(first_limit) - 1 - uint32_t(pairs[i]));
    outside |= uint32_t(pairs[i + 1]) | (uint32_t(second_limit) - 1 - uint32_t(pairs[i + 1]));
  }
  return int32_t(outside) >= 0;
}

// Whether a plan names only edges and nodes that are there: all that keeps the kernels within their arrays.
inline bool is_safe(const InteractionCall& call) {
  const InteractionPlan parts{call.num_edges, call.num_sources, call.num_rows};
  const int32_t *plan = call.plan, count = plan[0];
  const bool by_edge = call.is_second || call.grad_expansion || call.grad_envelope;
  const bool alone = !(call.half_list || call.direction || (by_edge && !call.keeps_slopes));
  if (count < 0 || count > call.num_edges || plan[2] != call.num_sources || plan[3] != call.num_rows) return false;
  const bool twins = plan[1] == ~int32_t(call.num_edges) && alone && count <= call.num_edges / 2;
  if (plan[1] != call.num_edges && !twins) return false;
  if (call.keeps_slopes && (call.direction || !call.centres)) return false;
  return all_below(plan + parts.edges(), twins ? 2 * count : count, call.num_edges) &&
         all_below(plan + parts.sources(), count, call.num_sources) &&
         all_below(plan + parts.receivers(), count, call.num_rows) &&
         rows_climb(plan + parts.receiver_rowptr(), call.num_rows, count) &&
         rows_climb(plan + parts.source_rowptr(), call.num_sources, count) &&
         pairs_are_below(plan + parts.receiver_pairs(), count, count, call.num_sources) &&
         pairs_are_below(plan + parts.source_pairs(), count, count, call.num_rows);
}

}  // namespace popgeo

// Whether this processor has kernels for interactions.
EXPORT int64_t popgeo_interaction_is_served() { return popgeo::interaction_kernels().forward != nullptr; }

// How many int32 a plan has.
EXPORT int64_t popgeo_interaction_plan_size(int64_t num_edges, int64_t num_sources, int64_t num_rows) {
  return popgeo::InteractionPlan{num_edges, num_sources, num_rows}.size();
}

EXPORT int64_t popgeo_interaction_plan(const popgeo::InteractionPlanCall* packed) {
  const popgeo::InteractionPlanCall call = *packed;
  if (!popgeo::all_below(call.src, call.num_edges, call.num_sources) ||
      !popgeo::all_below(call.dst, call.num_edges, call.num_rows))
    return 1;
  popgeo::make_plan(call);
  return 0;
}

// Floats of the workspace that a call needs, in either direction.
EXPORT int64_t popgeo_interaction_workspace(const popgeo::InteractionCall* packed) {
  return popgeo::interaction_kernels().workspace(*packed);
}

EXPORT int64_t popgeo_interaction_forward(const popgeo::InteractionCall* packed) {
  if (!popgeo::is_safe(*packed)) return 1;
  popgeo::interaction_kernels().forward(*packed);
  return 0;
}

EXPORT int64_t popgeo_interaction_backward(const popgeo::InteractionCall* packed) {
  if (!popgeo::is_safe(*packed)) return 1;
  popgeo::interaction_kernels().backward(*packed);
  return 0;
}

EXPORT int64_t popgeo_interaction_second(const popgeo::InteractionCall* packed) {
  if (!popgeo::is_safe(*packed)) return 1;
  popgeo::interaction_kernels().second(*packed);
  return 0;
}
