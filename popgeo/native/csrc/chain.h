// A chain of element-wise operations, as the engine passes it: a program for blocks of elements that stay in the cache.
#pragma once

#include <cstdint>

#ifndef POPGEO_ISA
#define POPGEO_ISA baseline
#endif

namespace popgeo {

// The place of an instruction's operand or result. Steps are counted in elements.
enum Place : int64_t {
  REGISTER = 0,  // block `row` of the thread's own memory
  DIRECT = 1,    // floats that lie in the order of the elements
  SCALAR = 2,    // one float for all elements
  STRIDED = 3,   // memory of any type and order; only loads, stores and sums take it
};
// In a chain of edges `edge` is the step from one edge to the next, or from one row of a table to the next where `index`
// says which row of it an edge has.
struct Slot {
  int64_t place;
  char* base;
  int64_t row, column, edge;
  const int64_t* index;
};

// The edges of each row of a table, in the order of sums at rows.
struct EdgeOrder {
  const int32_t* memory;  // result of popgeo_plan, number of rows, rowptr, perm
  bool is_sorted() const { return memory[0] == 1; }
  int64_t num_rows() const { return memory[1]; }
  const int32_t* rowptr() const { return memory + 2; }
  const int32_t* perm() const { return is_sorted() ? nullptr : memory + 3 + num_rows(); }
};

// Codes below FIRST_MEMORY_CODE name a row of the table in chains.cpp; `form` says which operand is one for all elements.
struct Instruction {
  int64_t code, form, out, a, b, c;
};

// The elements are num_rows x num_columns; a block is block_rows whole rows, or a part of one row. Threads share chunks,
// which do not depend on the number of threads, so sums do not either. An edge has `group` rows, all in one block. With
// sums at rows of a table, blocks follow `order`, and a chunk has all edges of its rows.
struct Chain {
  const Slot* slots;
  const Instruction* instructions;
  double* partial;  // of each chunk, partial_size numbers
  int64_t num_slots, num_instructions, num_invariant;
  int64_t num_rows, num_columns, block_rows, block_columns;
  int64_t num_chunks, partial_size, sums_columns, group;
  EdgeOrder order;  // or null
};

constexpr int64_t BLOCK = 1024, MAX_REGISTERS = 24, MAX_SLOTS = 128;

namespace POPGEO_ISA {
int64_t run_chain(const Chain& chain);
}

}  // namespace popgeo
