// The structures of plain operations: element by element, and reductions. Both files that compute them are compiled once
// per instruction set (see setup.py); run_plain.cpp chooses.
#pragma once

#include <cstdint>

#ifndef POPGEO_ISA
#define POPGEO_ISA baseline
#endif

namespace popgeo {

// In the order of TYPES in popgeo/engine/program/strided.py. The last two are only moved.
enum Type : int64_t { FLOAT, DOUBLE, INT64, INT32, BOOL, BYTE, TWO_BYTES };

constexpr int NUM_DIMS = 6;

// Elements at an address, with a step in elements for each dimension.
struct Strided {
  int64_t address, type, steps[NUM_DIMS];
};

// One operation on all elements of `sizes`; the last dimension is the innermost.
struct Elements {
  int64_t code, type, num_operands, sizes[NUM_DIMS];
  Strided out, operands[3];
};

// A reduction of all elements of `sizes`; the first dimension is the innermost, and the result's steps of reduced dimensions
// are 0. The results are contiguous. `divisor` is the number of elements of a mean.
struct Reduction {
  int64_t code, divisor, num_results, sizes[NUM_DIMS];
  Strided out, in;
};

inline int64_t type_size(int64_t type) {
  constexpr int64_t SIZES[] = {4, 8, 8, 4, 1, 1, 2};
  return SIZES[type];
}

// Returns the address of the element at one place of each dimension.
inline char* element(const Strided& of, const int64_t* at) {
  int64_t step = 0;
  for (int d = 0; d < NUM_DIMS; ++d) step += at[d] * of.steps[d];
  return reinterpret_cast<char*>(of.address) + step * type_size(of.type);
}

inline bool is_aligned(const Strided& of) { return of.address % type_size(of.type) == 0; }

}  // namespace popgeo
