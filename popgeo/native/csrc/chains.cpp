// Runs chains of element-wise operations, block by block: each instruction is one loop over a block in the cache.
// The file is compiled once per instruction set (see setup.py), like kernels.cpp; run_chain.cpp chooses.
#include "vectorise.h"  // first

#include "chain.h"
#include "chain_math.h"
#include "chain_operations.h"
#include "denormals.h"
#include "kernels.h"

namespace popgeo {
namespace POPGEO_ISA {
namespace chain {

enum Code : int64_t {
  FILL = 100,
  LOAD_FLOAT,
  LOAD_BOOL,
  LOAD_INT64,
  LOAD_INT32,
  STORE_FLOAT,
  STORE_BOOL,
  SUM_ROWS,     // over the rows: one number a column; c says where in the chunk's partial sums
  SUM_COLUMNS,  // over the columns: one number a row
  SUM_ALL,
  SUM_AT,  // at a row of a table for each edge
  MAX_AT,
  MIN_AT,
};

// A block: rows x columns elements, the first at (row, column).
struct Block {
  int64_t row, column, rows, columns;
  bool ends_row;
  // In a chain of edges: how many there are, how many come after them, and which they are where they are not in order.
  int64_t num_edges = 0, num_later = 0, first_edge = 0;
  const int32_t* edges = nullptr;
  int64_t edge(int64_t k) const { return edges ? edges[k] : first_edge + k; }
};

template <class T>
void load(float* out, const Slot& slot, const Block& block) {
  for (int64_t r = 0; r < block.rows; ++r, out += block.columns) {
    const T* from = reinterpret_cast<const T*>(slot.base) + (block.row + r) * slot.row + block.column * slot.column;
    if (slot.column == 0) {
      const float value = float(*from);
      for (int64_t i = 0; i < block.columns; ++i) out[i] = value;
    } else if (slot.column == 1) {
      for (int64_t i = 0; i < block.columns; ++i) out[i] = float(from[i]);
    } else {
      for (int64_t i = 0; i < block.columns; ++i) out[i] = float(from[i * slot.column]);
    }
  }
}

POPGEO_INLINE void put(float* to, float value) { *to = value; }
POPGEO_INLINE void put(uint8_t* to, float value) { *to = value != 0.0f; }

template <class T>
void save(const float* in, const Slot& slot, const Block& block) {
  for (int64_t r = 0; r < block.rows; ++r, in += block.columns) {
    T* to = reinterpret_cast<T*>(slot.base) + (block.row + r) * slot.row + block.column * slot.column;
    if (slot.column == 1)
      for (int64_t i = 0; i < block.columns; ++i) put(to + i, in[i]);
    else
      for (int64_t i = 0; i < block.columns; ++i) put(to + i * slot.column, in[i]);
  }
}

// Loads the elements of edges, each of `group` rows, from each edge's own place.
template <class T>
void load_edges(float* out, const Slot& slot, const Block& block, int64_t group) {
  const int64_t columns = block.columns, width = group * columns;
  const T* base = reinterpret_cast<const T*>(slot.base);
  auto at = [&](int64_t k) {
    const int64_t edge = block.edge(k);
    return base + (slot.index ? slot.index[edge] : edge) * slot.edge;
  };
  const bool is_whole = slot.column == 1 && (group == 1 || slot.row == columns);
  const int64_t count = block.num_edges, later = is_whole && (slot.index || block.edges) ? block.num_later : 0;
  const int64_t fetched = later < count ? later : count, named = slot.index && block.edges ? later - count : 0;
  for (int64_t k = 0; k < block.num_edges; ++k, out += width) {
    const T* from = at(k);
    if (k < named) __builtin_prefetch(slot.index + block.edges[k + 2 * count]);
    if (k < fetched) {
      const char* next = reinterpret_cast<const char*>(at(k + count));
      for (int64_t offset = 0; offset < width * int64_t(sizeof(T)); offset += 64) __builtin_prefetch(next + offset, 0, 3);
    }
    if (is_whole) {
      POPGEO_VECTORISE
      for (int64_t i = 0; i < width; ++i) out[i] = float(from[i]);
      continue;
    }
    for (int64_t g = 0; g < group; ++g) {
      const T* row = from + g * slot.row;
      float* to = out + g * columns;
      if (slot.column == 0) {
        const float value = float(*row);
        for (int64_t i = 0; i < columns; ++i) to[i] = value;
      } else {
        for (int64_t i = 0; i < columns; ++i) to[i] = float(row[i * slot.column]);
      }
    }
  }
}

template <class T>
void save_edges(const float* in, const Slot& slot, const Block& block, int64_t group) {
  const int64_t columns = block.columns, width = group * columns;
  const bool is_whole = slot.column == 1 && (group == 1 || slot.row == columns);
  for (int64_t k = 0; k < block.num_edges; ++k, in += width) {
    T* to = reinterpret_cast<T*>(slot.base) + block.edge(k) * slot.edge;
    if (is_whole) {
      POPGEO_VECTORISE
      for (int64_t i = 0; i < width; ++i) put(to + i, in[i]);
      continue;
    }
    for (int64_t g = 0; g < group; ++g)
      for (int64_t i = 0; i < columns; ++i) put(to + g * slot.row + i * slot.column, in[g * columns + i]);
  }
}

// Joins the elements of edges at their rows (F: sum, maximum, minimum); a row's first edge replaces it. `row` is the receiver's
// number, or, at the receiver's first edge, -1 minus this number.
template <class F>
void join_at(const float* in, const Slot& slot, const Block& block, int64_t group, const int32_t* receivers) {
  const int64_t width = group * block.columns;
  for (int64_t k = 0; k < block.num_edges; ++k, in += width) {
    const int64_t row = receivers[k];
    float* to = reinterpret_cast<float*>(slot.base) + (row < 0 ? -1 - row : row) * slot.edge;
    if (row < 0) {
      POPGEO_VECTORISE
      for (int64_t i = 0; i < width; ++i) to[i] = F::first(in[i]);
    } else {
      POPGEO_VECTORISE
      for (int64_t i = 0; i < width; ++i) to[i] = F::of(to[i], in[i]);
    }
  }
}

struct SumAt : Add { static POPGEO_INLINE float first(float x) { return 0.0f + x; } };
struct MaxAt : Max { static POPGEO_INLINE float first(float x) { return x; } };
struct MinAt : Min { static POPGEO_INLINE float first(float x) { return x; } };

typedef float Eight __attribute__((vector_size(32)));
typedef float Four __attribute__((vector_size(16)));
typedef double FourDoubles __attribute__((vector_size(32)));
typedef int32_t EightWords __attribute__((vector_size(32)));

POPGEO_INLINE void add_eight(Eight& sum, const float* in) {
  Eight next;
  memcpy(&next, in, sizeof(next));
  sum += next;
}

// Sixteen numbers on every processor, so that the order of a sum does not depend on the width of vectors; in two halves,
// because types that are wider than the processor's vectors pass through memory.
struct Sixteen {
  Eight low, high;
  POPGEO_INLINE void add(const float* in) {
    add_eight(low, in);
    add_eight(high, in + 8);
  }
};

POPGEO_INLINE void add_doubles(double* total, const float* in) {
  Four next;
  FourDoubles sum;
  memcpy(&next, in, sizeof(next));
  memcpy(&sum, total, sizeof(sum));
  sum += __builtin_convertvector(next, FourDoubles);
  memcpy(total, &sum, sizeof(sum));
}

float sum_of(const float* in, int64_t size) {
  if (size < 16) {
    float total = 0.0f;
    for (int64_t i = 0; i < size; ++i) total += in[i];
    return total;
  }
  Sixteen parts = {};
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) parts.add(in + i);
  if (i < size) {  // the last sixteen, without the numbers that are already in the sum
    const EightWords lane = {0, 1, 2, 3, 4, 5, 6, 7};
    const int32_t first = int32_t(16 - (size - i));
    Sixteen last = {};
    last.add(in + size - 16);
    parts.low += lane >= first ? last.low : Eight{};
    parts.high += lane >= first - 8 ? last.high : Eight{};
  }
  parts.low += parts.high;
  Four four[2];
  memcpy(four, &parts.low, sizeof(four));
  four[0] += four[1];
  return (four[0][0] + four[0][2]) + (four[0][1] + four[0][3]);
}

// The rows of a block are summed as floats, blocks in double precision.
void add_to(double* total, const float* in, const Block& block) {
  total += block.column;
  int64_t i = 0;
  for (; i + 16 <= block.columns; i += 16) {
    Sixteen sum = {};
    for (int64_t r = 0; r < block.rows; ++r) sum.add(in + r * block.columns + i);
    float lanes[16];
    memcpy(lanes, &sum, sizeof(lanes));
    for (int lane = 0; lane < 16; lane += 4) add_doubles(total + i + lane, lanes + lane);
  }
  for (; i < block.columns; ++i) {
    float sum = 0.0f;
    for (int64_t r = 0; r < block.rows; ++r) sum += in[r * block.columns + i];
    total[i] += sum;
  }
}

// Sums each row of an edge.
void sum_columns_of_edges(const float* in, const Slot& slot, const Block& block, int64_t group) {
  for (int64_t k = 0; k < block.num_edges; ++k)
    for (int64_t g = 0; g < group; ++g, in += block.columns)
      reinterpret_cast<float*>(slot.base)[block.edge(k) * slot.edge + g * slot.row] = sum_of(in, block.columns);
}

// Sums each row of the block, with the partial sum of earlier blocks of the same row.
void sum_columns(const float* in, const Slot& slot, const Block& block, double* partial) {
  for (int64_t r = 0; r < block.rows; ++r, in += block.columns) {
    const double total = (block.column ? *partial : 0.0) + sum_of(in, block.columns);
    *partial = total;
    if (block.ends_row) reinterpret_cast<float*>(slot.base)[(block.row + r) * slot.row] = float(total);
  }
}

// Padding between registers, so that they do not compete for the same lines of the cache.
constexpr int64_t GAP = 16;

struct Worker {
  const Chain& chain;
  double* partial;
  float (*registers)[BLOCK + GAP];
  const int32_t* receivers = nullptr;

  void run(int64_t first, int64_t last, const Block& block) const {
    const int64_t size = block.rows * block.columns;
    auto at = [&](int64_t number) -> float* {
      const Slot& slot = chain.slots[number];
      if (slot.place == REGISTER) return registers[slot.row];
      const int64_t skipped = slot.place == DIRECT ? block.row * slot.row + block.column : 0;
      return reinterpret_cast<float*>(slot.base) + skipped;
    };
    for (const Instruction* it = chain.instructions + first; it < chain.instructions + last; ++it) {
      if (it->code < NUM_COMPUTED) {
        TABLE[it->code].loops[it->form](at(it->out), at(it->a), at(it->b), at(it->c), size);
        continue;
      }
      const Slot &from = chain.slots[it->a], &to = chain.slots[it->out];
      if (block.num_edges && run_on_edges(*it, from, to, at, block)) continue;
      switch (it->code) {
        case FILL: fill(at(it->out), *at(it->a), size); break;
        case LOAD_FLOAT: load<float>(at(it->out), from, block); break;
        case LOAD_BOOL: load<uint8_t>(at(it->out), from, block); break;
        case LOAD_INT64: load<int64_t>(at(it->out), from, block); break;
        case LOAD_INT32: load<int32_t>(at(it->out), from, block); break;
        case STORE_FLOAT: save<float>(at(it->a), to, block); break;
        case STORE_BOOL: save<uint8_t>(at(it->a), to, block); break;
        case SUM_ROWS: add_to(partial + it->c, at(it->a), block); break;
        case SUM_COLUMNS: sum_columns(at(it->a), to, block, partial + it->c); break;
        case SUM_ALL: partial[it->c] += sum_of(at(it->a), size); break;
      }
    }
  }

  // Runs an instruction that moves edges from or to each edge's own place; returns false for all other instructions.
  template <class At>
  bool run_on_edges(const Instruction& it, const Slot& from, const Slot& to, At at, const Block& block) const {
    const int64_t group = chain.group;
    switch (it.code) {
      case LOAD_FLOAT: load_edges<float>(at(it.out), from, block, group); return true;
      case LOAD_BOOL: load_edges<uint8_t>(at(it.out), from, block, group); return true;
      case LOAD_INT64: load_edges<int64_t>(at(it.out), from, block, group); return true;
      case LOAD_INT32: load_edges<int32_t>(at(it.out), from, block, group); return true;
      case STORE_FLOAT: save_edges<float>(at(it.a), to, block, group); return true;
      case STORE_BOOL: save_edges<uint8_t>(at(it.a), to, block, group); return true;
      case SUM_ROWS: add_to(partial + it.c, at(it.a), {0, 0, block.num_edges, group * block.columns, true}); return true;
      case SUM_COLUMNS: sum_columns_of_edges(at(it.a), to, block, group); return true;
      case SUM_AT: join_at<SumAt>(at(it.a), to, block, group, receivers); return true;
      case MAX_AT: join_at<MaxAt>(at(it.a), to, block, group, receivers); return true;
      case MIN_AT: join_at<MinAt>(at(it.a), to, block, group, receivers); return true;
      default: return false;
    }
  }

  static void fill(float* out, float value, int64_t size) {
    for (int64_t i = 0; i < size; ++i) out[i] = value;
  }
};

// Clears rows without edges.
void clear_empty_rows(const Chain& chain, int64_t begin, int64_t end) {
  const int32_t* rowptr = chain.order.rowptr();
  for (int64_t i = chain.num_invariant; i < chain.num_instructions; ++i) {
    const Instruction& it = chain.instructions[i];
    if (it.code < SUM_AT) continue;
    const Slot& to = chain.slots[it.out];
    for (int64_t row = begin; row < end; ++row)
      if (rowptr[row] == rowptr[row + 1])
        memset(reinterpret_cast<float*>(to.base) + row * to.edge, 0, sizeof(float) * size_t(chain.group * chain.num_columns));
  }
}

// Visits the edges of a share of the table's rows, row by row.
void run_rows(const Chain& chain, int64_t chunk, Worker worker) {
  const int32_t *rowptr = chain.order.rowptr(), *perm = chain.order.perm();
  const int64_t num_rows = chain.order.num_rows();
  const Plan plan{rowptr, perm, chain.num_rows / chain.group, num_rows, 0, 1};
  const int64_t begin = tile_start(plan, chunk, chain.num_chunks), end = tile_start(plan, chunk + 1, chain.num_chunks);
  clear_empty_rows(chain, begin, end);
  const int64_t most = chain.block_rows / chain.group, last = rowptr[end];
  int32_t receivers[BLOCK];
  worker.receivers = receivers;
  Block block{0, 0, chain.block_rows, chain.num_columns, true, most};
  worker.run(0, chain.num_invariant, block);
  int64_t row = begin;
  for (int64_t p = rowptr[begin]; p < last; p += most) {
    const int64_t count = last - p < most ? last - p : most;
    for (int64_t k = 0; k < count; ++k) {
      while (rowptr[row + 1] <= p + k) ++row;
      receivers[k] = int32_t(rowptr[row] == p + k ? -1 - row : row);
    }
    block = {p * chain.group, 0, count * chain.group, chain.num_columns, true, count, last - p - count, p, perm ? perm + p : nullptr};
    worker.run(chain.num_invariant, chain.num_instructions, block);
  }
}

void run_chunk(const Chain& chain, int64_t chunk, int64_t num_units, int64_t parts) {
  alignas(64) float registers[MAX_REGISTERS][BLOCK + GAP];
  double* partial = chain.partial + chunk * chain.partial_size;
  for (int64_t i = 0; i < chain.partial_size; ++i) partial[i] = 0.0;
  const Worker worker{chain, partial, registers};
  if (chain.order.memory) return run_rows(chain, chunk, worker);
  const int64_t begin = chunk * num_units / chain.num_chunks, end = (chunk + 1) * num_units / chain.num_chunks;
  if (begin == end) return;
  const int64_t most = chain.group ? chain.block_rows / chain.group : 0;  // edges of a block
  worker.run(0, chain.num_invariant, {0, 0, chain.block_rows, chain.block_columns, true, most});
  for (int64_t unit = begin; unit < end; ++unit) {
    // A unit is a block, or a whole row if rows of several blocks are summed.
    const int64_t first = chain.sums_columns ? unit * parts : unit;
    const int64_t last = chain.sums_columns ? first + parts : first + 1;
    for (int64_t number = first; number < last; ++number) {
      const int64_t row = number / parts * chain.block_rows, column = number % parts * chain.block_columns;
      const int64_t rows = chain.num_rows - row, columns = chain.num_columns - column;
      const bool ends = columns <= chain.block_columns;
      Block block{row, column, rows < chain.block_rows ? rows : chain.block_rows, ends ? columns : chain.block_columns, ends};
      if (most) {
        block.num_edges = block.rows / chain.group;
        block.num_later = (rows - block.rows) / chain.group;
        block.first_edge = row / chain.group;
      }
      worker.run(chain.num_invariant, chain.num_instructions, block);
    }
  }
}

// Adds the sums of all chunks, in their order.
void finish(const Chain& chain) {
  for (int64_t i = chain.num_invariant; i < chain.num_instructions; ++i) {
    const Instruction& it = chain.instructions[i];
    if (it.code != SUM_ROWS && it.code != SUM_ALL) continue;
    const Slot& to = chain.slots[it.out];
    const int64_t size = it.code == SUM_ROWS ? chain.num_columns * (chain.group ? chain.group : 1) : 1;
    for (int64_t k = 0; k < size; ++k) {
      double total = 0.0;
      for (int64_t chunk = 0; chunk < chain.num_chunks; ++chunk) total += chain.partial[chunk * chain.partial_size + it.c + k];
      reinterpret_cast<float*>(to.base)[k * to.column] = float(total);
    }
  }
}

}  // namespace chain

int64_t run_chain(const Chain& chain) {
  const int64_t parts = (chain.num_columns + chain.block_columns - 1) / chain.block_columns;
  const int64_t row_blocks = (chain.num_rows + chain.block_rows - 1) / chain.block_rows;
  const int64_t num_units = chain.sums_columns ? row_blocks : row_blocks * parts;
  const uint64_t of_caller = denormals();
#ifdef _OPENMP
#pragma omp parallel if (chain.num_chunks > 1)
#endif
  {
    const Denormals same(of_caller);
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
    for (int64_t chunk = 0; chunk < chain.num_chunks; ++chunk) chain::run_chunk(chain, chunk, num_units, parts);
  }
  chain::finish(chain);
  return 0;
}

}  // namespace POPGEO_ISA
}  // namespace popgeo
