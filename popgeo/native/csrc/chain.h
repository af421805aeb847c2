// A chain of element-wise operations as the engine hands it over: a program for blocks of elements that stay in cache.
#pragma once

#include <cstdint>

#ifndef POPGEO_ISA
#define POPGEO_ISA baseline
#endif

namespace popgeo {

// Where an instruction finds or leaves its elements. Steps are counted in elements.
enum Place : int64_t {
  REGISTER = 0,  // block `row` of the thread's own memory
  DIRECT = 1,    // floats that lie in the order of the elements
  SCALAR = 2,    // one float for all elements
  STRIDED = 3,   // memory of any type and order; only loads, stores and sums take it
};
struct Slot {
  int64_t place;
  char* base;
  int64_t row, column;
};

// Codes below FIRST_MEMORY_CODE name a row of the table in chains.cpp; `form` says which operand is one for all elements.
struct Instruction {
  int64_t code, form, out, a, b, c;
};

// The elements are num_rows x num_columns; a block is block_rows whole rows, or a part of one row. The chunks that threads
// share out do not depend on their number, and so neither does any sum.
struct Chain {
  const Slot* slots;
  const Instruction* instructions;
  double* partial;  // of each chunk, partial_size numbers
  int64_t num_slots, num_instructions, num_invariant;
  int64_t num_rows, num_columns, block_rows, block_columns;
  int64_t num_chunks, partial_size, sums_columns;
};

constexpr int64_t BLOCK = 1024, MAX_REGISTERS = 24, MAX_SLOTS = 128;

namespace POPGEO_ISA {
int64_t run_chain(const Chain& chain);
}

}  // namespace popgeo
