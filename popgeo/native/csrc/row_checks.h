// Checks of indices and pointers, so that kernels stay within their arrays.
#pragma once

#include "aligned.h"

namespace popgeo {

// If a number is outside [0, limit), the sign bit of the number, or of limit - 1 - number, is set. Compilers vectorize
// sums of sign bits on every processor.
inline bool all_below(const int64_t* values, int64_t count, int64_t limit) {
  uint64_t outside = 0;
  for (int64_t i = 0; i < count; ++i) outside |= uint64_t(values[i]) | (uint64_t(limit) - 1 - uint64_t(values[i]));
  return int64_t(outside) >= 0;
}

// Checks that the pointers of rows, at any address, never descend and stay within the edges.
inline bool climbs(const int64_t* indptr, int64_t num_rows, int64_t num_edges) {
  bool climbing = number_at(indptr, 0) >= 0 && number_at(indptr, num_rows) <= num_edges;
  for (int64_t row = 0; row < num_rows; ++row) climbing &= number_at(indptr, row) <= number_at(indptr, row + 1);
  return climbing;
}

}  // namespace popgeo
