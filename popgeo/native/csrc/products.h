// One product of matrices, as popgeo/engine/program/lower_products.py packs it.
#pragma once

#include <cstdint>

namespace popgeo {

// out[i, j] = first[i, j] + sum over p of a[i, p] * b[p, j], for each matrix of a batch. Strides are in elements.
struct MatrixProduct {
  const void* a;      // [num_rows, num_inner], one of whose strides is 1
  const void* b;      // [num_inner, num_columns], likewise
  const void* first;  // what the sums begin with, with rows of adjacent columns; null: with zeros
  void* out;          // with rows of adjacent columns
  int64_t is_double, num_matrices, num_rows, num_inner, num_columns;
  int64_t a_rows, a_inner, b_inner, b_columns, first_rows, out_rows;  // strides
  int64_t a_matrix, b_matrix, first_matrix, out_matrix;               // from one matrix to the next
  int64_t num_threads, in_order;
};

// A gradient: the sum of products over the rows of each graph, then over graphs in halves.
struct GraphSum {
  const MatrixProduct* terms;        // of one shape of the result, which the first one has
  const int64_t* const* first_rows;  // of each term: the number of graphs, the first row of each, the number of rows
  int64_t num_terms, num_threads;
};

}  // namespace popgeo
