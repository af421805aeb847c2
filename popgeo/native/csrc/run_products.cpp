// The C function of products of matrices, by the newest instruction set that the processor has.
#include "products.h"

#include "aligned.h"
#include "kernels.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace popgeo {

extern int64_t chosen_isa;

using Multiply = void (*)(const MatrixProduct&);
using SumGraphs = void (*)(const GraphSum&);

#ifdef POPGEO_HAS_V3
namespace v3 {
void multiply(const MatrixProduct&);
void sum_graphs(const GraphSum&);
}  // namespace v3
#endif
#ifdef POPGEO_HAS_V4
namespace v4 {
void multiply(const MatrixProduct&);
void sum_graphs(const GraphSum&);
}  // namespace v4
#endif

// Null if torch is faster: on processors without fused multiply-adds, and on unknown processors.
static Multiply multiply() {
#ifdef POPGEO_HAS_V4
  if (chosen_isa == 2) return v4::multiply;
#endif
#ifdef POPGEO_HAS_V3
  if (chosen_isa >= 1) return v3::multiply;
#endif
  return nullptr;
}

static SumGraphs sum_graphs() {
#ifdef POPGEO_HAS_V4
  if (chosen_isa == 2) return v4::sum_graphs;
#endif
#ifdef POPGEO_HAS_V3
  if (chosen_isa >= 1) return v3::sum_graphs;
#endif
  return nullptr;
}

struct GraphRows {
  const int64_t *graph_of_row, *batch;  // of each row, or null if row i belongs to graph i; and of each node
  int64_t* first_rows;                  // [num_nodes + 2]: see GraphSum
  int64_t num_rows, num_nodes, each, is_padded;  // each: adjacent rows that belong to one entry of `graph_of_row`
};

// The number of real graphs: graphs of padding come last. 1 if the nodes are not sorted by graph.
inline int64_t count_graphs(const GraphRows& call) {
  const int64_t count = call.num_nodes, last = number_at(call.batch, count - 1);
  int64_t before = -1;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t graph = number_at(call.batch, i);
    if (graph < before || graph < 0) return 1;
    if (call.is_padded && graph == last) break;
    before = graph;
  }
  return before < 0 ? 1 : before < count ? before + 1 : count;
}

inline void list_rows(const GraphRows& call) {
  const int64_t num_graphs = count_graphs(call), entries = call.num_rows / call.each;
  int64_t* const first = call.first_rows + 1;
  int64_t graph = 0;
  for (int64_t i = 0; i < entries; ++i) {
    const int64_t owner = call.graph_of_row ? number_at(call.graph_of_row, i) : i;
    for (; graph <= owner && graph < num_graphs; ++graph) first[graph] = i * call.each;
  }
  for (; graph <= num_graphs; ++graph) first[graph] = call.num_rows;
  first[0] = 0;
  call.first_rows[0] = num_graphs;
}

}  // namespace popgeo

EXPORT int64_t popgeo_graph_rows(const popgeo::GraphRows* call) {
  popgeo::list_rows(*call);
  return popgeo::OK;
}

EXPORT int64_t popgeo_graph_sum(const popgeo::GraphSum* sum) {
  const popgeo::SumGraphs add = popgeo::sum_graphs();
  if (!add) return popgeo::BAD_INPUT;
  add(*sum);
  return popgeo::OK;
}

// Returns whether products run here.
EXPORT int64_t popgeo_multiplies() { return popgeo::multiply() != nullptr; }

EXPORT int64_t popgeo_multiply(const popgeo::MatrixProduct* product) {
  const popgeo::Multiply multiply = popgeo::multiply();
  if (!multiply) return popgeo::BAD_INPUT;
  multiply(*product);
  return popgeo::OK;
}
