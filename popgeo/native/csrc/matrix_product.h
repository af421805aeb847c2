// One product of small matrices of float32: what the kernel is given.
#pragma once

#include <cstdint>

#ifndef POPGEO_ISA
#define POPGEO_ISA baseline
#endif

namespace popgeo {

// c = a b + bias in every row. Element (i, k) of a lies at i * a_row + k * a_column, and b alike. Python
// packs it as so many numbers of 64 bits (popgeo/engine/matrix_product.py).
struct MatrixProduct {
  const float *a, *b, *bias;  // [rows, depth], [depth, columns], [columns] or null
  float* c;                   // [rows, columns], row after row
  float* workspace;           // `matrix_product_workspace` floats
  int64_t rows, columns, depth;
  int64_t a_row, a_column, b_row, b_column;
  int64_t num_threads;
};

constexpr int64_t WIDEST = 16;  // floats of the widest vector

inline int64_t whole_vectors(int64_t columns) { return (columns + WIDEST - 1) / WIDEST * WIDEST; }

// Whether whole vectors may be read from each row of b but the last one: what lies beyond a row is the next one.
inline bool is_read_in_place(const MatrixProduct& call) {
  return call.b_column == 1 && call.b_row >= call.columns && call.columns >= WIDEST;
}

// Of b the last row alone, or all of it, is copied there, and so is the bias.
inline int64_t matrix_product_workspace(const MatrixProduct& call) {
  return whole_vectors(call.columns) * ((is_read_in_place(call) ? 1 : call.depth) + 1);
}

namespace POPGEO_ISA {
void matrix_product(const MatrixProduct& call);
}

}  // namespace popgeo
