// Fills the tensors of several batches of fixed size from a flat dataset. popgeo/data/fill.py is the definition.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "aligned.h"

namespace {

using popgeo::number_at;  // tensors over the bytes of a file begin at any byte

enum Kind : int64_t { COPY, SHIFT, SEGMENT, POINTER, MASK, ROW_POINTER };

// One tensor of a batch; popgeo/data/compiled_fill.py writes these fields in this order.
struct Slot {
  int64_t kind;
  int64_t axis;             // number of the row pointer that counts its rows
  int64_t num_slots;        // rows of a batch, padding included
  int64_t fixed_rows;       // every graph has equally many rows, padding or not
  int64_t outer;            // elements before the dimension of rows
  int64_t inner;            // elements of one row
  int64_t element_bytes;    // of one source element
  int64_t out_bytes;        // of one index written: 4 or 8
  const char* source;       // [outer, source_rows, inner]
  int64_t source_rows;
  char* out;                // [num_batches, batch_bytes]
  int64_t batch_bytes;
  const char* pad;          // one element that fills padding
  const int64_t* increments;  // [num_graphs of the dataset, increment_width]
  int64_t increment_width;
  int64_t spread;
  int64_t end_axis[2];      // node axes at both ends of an edge
  int64_t end_slots[2];
  const int64_t* row_ends;  // see FlatStore.row_ends
  int64_t checked;          // whether to check that indices are below their graph's increment
};

constexpr int64_t kAhead = 4;          // graphs to fetch ahead of the copy
constexpr int64_t kLine = 64;          // bytes of a cache line
constexpr int64_t kMostAhead = 1024;  // bytes of one graph to fetch ahead; the hardware prefetches the rest

// The graphs of one batch along one axis, and the first few of the next batch, to fetch their rows in time.
struct Rows {
  std::vector<int64_t> start;  // first row in the dataset: [num_real + kAhead]
  std::vector<int64_t> end;    // rows of the batch before graph g: [num_real + 1 + kAhead]
  int64_t num_real = 0;
  int64_t used = 0;

  // Prefetches the rows of the graph that is copied kAhead graphs later.
  void fetch_ahead(const char* source, int64_t g, int64_t row_bytes) const {
    const char* from = source + start[g + kAhead] * row_bytes;
    const char* stop = from + std::min((end[g + kAhead + 1] - end[g + kAhead]) * row_bytes, kMostAhead);
    for (; from < stop; from += kLine) __builtin_prefetch(from);
  }
};

// Writes `count` copies of one element, doubling what is already there.
void fill(char* out, const char* element, int64_t element_bytes, int64_t count) {
  const int64_t total = element_bytes * count;
  if (total <= 0) return;
  if (std::all_of(element, element + element_bytes, [](char byte) { return byte == 0; })) {
    std::memset(out, 0, total);
    return;
  }
  std::memcpy(out, element, element_bytes);
  for (int64_t done = element_bytes; done < total; done *= 2) std::memcpy(out + done, out, std::min(done, total - done));
}

void copy(const Slot& slot, const Rows& rows, char* out) {
  const int64_t row_bytes = slot.inner * slot.element_bytes;
  for (int64_t o = 0; o < slot.outer; ++o) {
    const char* source = slot.source + o * slot.source_rows * row_bytes;
    char* to = out + o * slot.num_slots * row_bytes;
    for (int64_t g = 0; g < rows.num_real; ++g) {
      rows.fetch_ahead(source, g, row_bytes);
      const int64_t bytes = (rows.end[g + 1] - rows.end[g]) * row_bytes;
      if (bytes) std::memcpy(to, source + rows.start[g] * row_bytes, bytes);  // an empty tensor has no address
      to += bytes;
    }
    fill(to, slot.pad, slot.element_bytes, (slot.num_slots - rows.used) * slot.inner);
  }
}

// Returns false if an index points outside its graph.
template <typename In, typename Out>
bool shift(const Slot& slot, const std::vector<Rows>& all, const int64_t* graphs, char* bytes) {
  const Rows& rows = all[slot.axis];
  const int64_t free_edges = slot.num_slots - rows.used;
  for (int64_t o = 0; o < slot.outer; ++o) {
    const In* source = reinterpret_cast<const In*>(slot.source) + o * slot.source_rows * slot.inner;
    Out* to = reinterpret_cast<Out*>(bytes) + o * slot.num_slots * slot.inner;
    int64_t offset = 0;
    uint64_t outside = 0;  // its highest bit is a sum of sign bits, which compilers vectorize on every processor
    for (int64_t g = 0; g < rows.num_real; ++g) {
      rows.fetch_ahead(reinterpret_cast<const char*>(source), g, slot.inner * static_cast<int64_t>(sizeof(In)));
      const int64_t count = (rows.end[g + 1] - rows.end[g]) * slot.inner;
      const In* from = source + rows.start[g] * slot.inner;
      const int64_t step = number_at(slot.increments, graphs[g] * slot.increment_width + o % slot.increment_width);
      // Unsigned, because an index outside may be any number; sums of all others are the same.
      for (int64_t i = 0; i < count; ++i)
        to[i] = static_cast<Out>(uint64_t(int64_t(number_at(from, i))) + uint64_t(offset));
      if (slot.checked)
        for (int64_t i = 0; i < count; ++i)
          outside |= uint64_t(int64_t(number_at(from, i))) | (uint64_t(step) - 1 - uint64_t(int64_t(number_at(from, i))));
      to += count;
      offset += step;
    }
    if (outside >> 63) return false;
    if (!slot.spread) {
      std::fill(to, to + free_edges * slot.inner, static_cast<Out>(offset));
      continue;
    }
    const int64_t free_nodes = slot.end_slots[o] - all[slot.end_axis[o]].used;
    for (int64_t edge = 0; edge < free_edges; ++edge) to[edge] = static_cast<Out>(offset + edge * free_nodes / free_edges);
  }
  return true;
}

template <typename Out>
void segment(const Slot& slot, const Rows& rows, int64_t num_graphs, char* bytes) {
  Out* out = reinterpret_cast<Out*>(bytes);
  if (slot.fixed_rows) {
    const int64_t each = slot.num_slots / num_graphs;
    for (int64_t g = 0; g < num_graphs; ++g) std::fill(out + g * each, out + (g + 1) * each, static_cast<Out>(g));
    return;
  }
  const int64_t num_real = rows.num_real;
  for (int64_t g = 0; g < num_real; ++g) std::fill(out + rows.end[g], out + rows.end[g + 1], static_cast<Out>(g));
  std::fill(out + rows.used, out + slot.num_slots, static_cast<Out>(num_real));
}

template <typename Out>
void pointer(const Slot& slot, const Rows& rows, int64_t num_graphs, char* bytes) {
  Out* out = reinterpret_cast<Out*>(bytes);
  if (slot.fixed_rows) {
    const int64_t each = slot.num_slots / num_graphs;
    for (int64_t g = 0; g <= num_graphs; ++g) out[g] = static_cast<Out>(g * each);
    return;
  }
  const int64_t num_real = rows.num_real;
  for (int64_t g = 0; g <= num_real; ++g) out[g] = static_cast<Out>(rows.end[g]);
  std::fill(out + num_real + 1, out + num_graphs + 1, static_cast<Out>(slot.num_slots));
}

template <typename Out>
void row_pointer(const Slot& slot, const Rows& edges, const Rows& nodes, char* bytes) {
  Out* out = reinterpret_cast<Out*>(bytes);
  *out++ = 0;
  for (int64_t g = 0; g < nodes.num_real; ++g) {
    const int64_t* ends = slot.row_ends + nodes.start[g];
    const int64_t count = nodes.end[g + 1] - nodes.end[g];
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<Out>(number_at(ends, i) + edges.end[g]);
    out += count;
  }
  const int64_t padding = slot.end_slots[1] - nodes.used;
  const int64_t free_edges = slot.num_slots - edges.used;
  const int64_t sharing = slot.spread ? padding : 1;
  for (int64_t node = 1; node <= padding; ++node) {
    const int64_t dealt = (node * free_edges + sharing - 1) / sharing;
    *out++ = static_cast<Out>(edges.used + std::min(dealt, free_edges));
  }
}

template <typename Out>
bool write_index(const Slot& slot, const std::vector<Rows>& rows, const int64_t* graphs, int64_t num_graphs, char* out) {
  const Rows& own = rows[slot.axis];
  switch (slot.kind) {
    case SHIFT:
      if (slot.element_bytes == 8) return shift<int64_t, Out>(slot, rows, graphs, out);
      return shift<int32_t, Out>(slot, rows, graphs, out);
    case SEGMENT: segment<Out>(slot, own, num_graphs, out); break;
    case POINTER: pointer<Out>(slot, own, num_graphs, out); break;
    case ROW_POINTER: row_pointer<Out>(slot, own, rows[slot.end_axis[1]], out); break;
  }
  return true;
}

// A null row pointer means one row per graph. `graphs` holds `num_known` graphs, those of this batch first.
void find_rows(const int64_t* row_pointer, const int64_t* graphs, int64_t num_real, int64_t num_known, Rows& rows) {
  rows.num_real = num_real;
  rows.start.resize(num_real + kAhead);
  rows.end.resize(num_real + kAhead + 1);
  rows.end[0] = 0;
  for (int64_t g = 0; g < num_real + kAhead; ++g) {
    if (g >= num_known) {  // there is nothing to fetch after the last graph
      rows.start[g] = 0;
      rows.end[g + 1] = rows.end[g];
      continue;
    }
    const int64_t graph = graphs[g];
    rows.start[g] = row_pointer ? number_at(row_pointer, graph) : graph;
    rows.end[g + 1] = rows.end[g] + (row_pointer ? number_at(row_pointer, graph + 1) - rows.start[g] : 1);
  }
  rows.used = rows.end[num_real];
}

// Checks that the graphs of a batch fit the slot, so that no write is outside it.
bool fits(const Slot& slot, const std::vector<Rows>& rows, int64_t num_graphs) {
  const Rows& own = rows[slot.axis];
  if (own.used > slot.num_slots || own.num_real > num_graphs) return false;
  return slot.kind != ROW_POINTER || rows[slot.end_axis[1]].used <= slot.end_slots[1];
}

}  // namespace

// Returns 0; or 1 if there is no memory for row numbers, 2 if the graphs of a batch do not fit, or 3 if an index points
// outside its graph.
extern "C" __attribute__((visibility("default"))) int popgeo_collate(
    const int64_t* graphs, const int64_t* batch_ptr, int64_t num_batches, const int64_t* const* row_pointers,
    int64_t num_axes, const Slot* slots, int64_t num_slots, int64_t num_graphs) {
  try {
    std::vector<Rows> rows(num_axes);
    for (int64_t b = 0; b < num_batches; ++b) {
      const int64_t* members = graphs + batch_ptr[b];
      const int64_t num_real = batch_ptr[b + 1] - batch_ptr[b];
      const int64_t num_known = batch_ptr[num_batches] - batch_ptr[b];
      // The row pointers of random graphs are cache misses, so those of the next batch are fetched during this batch.
      const int64_t next_end = std::min(2 * num_real + kAhead, num_known);
      for (int64_t axis = 0; axis < num_axes; ++axis) {
        find_rows(row_pointers[axis], members, num_real, num_known, rows[axis]);
        for (int64_t g = num_real; row_pointers[axis] && g < next_end; ++g) {
          __builtin_prefetch(row_pointers[axis] + members[g]);
        }
      }
      for (int64_t s = 0; s < num_slots; ++s) {
        const Slot& slot = slots[s];
        if (!fits(slot, rows, num_graphs)) return 2;
        char* out = slot.out + b * slot.batch_bytes;
        if (slot.kind == COPY) copy(slot, rows[slot.axis], out);
        else if (slot.kind == MASK) {
          const int64_t used = rows[slot.axis].used;
          std::fill(out, out + used, 1);
          std::fill(out + used, out + slot.num_slots, 0);
        }
        else if (!(slot.out_bytes == 8 ? write_index<int64_t>(slot, rows, members, num_graphs, out)
                                       : write_index<int32_t>(slot, rows, members, num_graphs, out)))
          return 3;
      }
    }
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}
