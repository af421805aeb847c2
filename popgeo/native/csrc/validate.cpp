// Finds indices that leave their graph. popgeo/data/validate.py has the same in numpy.

#include <cstdint>

#include "aligned.h"

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
#define POPGEO_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define POPGEO_CLONES
#endif

namespace {

using popgeo::number_at;  // tensors over the bytes of a file begin at any byte

// Unsigned, negative numbers are huge, so one comparison checks both limits.
template <typename Index>
inline __attribute__((always_inline)) int64_t first_outside(const Index* values, int64_t outer, int64_t rows,
                                                            int64_t inner, const int64_t* row_pointer,
                                                            const int64_t* limits, int64_t width, int64_t num_graphs) {
  for (int64_t g = 0; g < num_graphs; ++g) {
    const int64_t start = number_at(row_pointer, g) * inner, stop = number_at(row_pointer, g + 1) * inner;
    for (int64_t o = 0; o < outer; ++o) {
      const uint64_t limit = static_cast<uint64_t>(number_at(limits, g * width + o % width));
      const Index* from = values + o * rows * inner;
      int64_t outside = 0;
      for (int64_t i = start; i < stop; ++i) {
        outside |= static_cast<uint64_t>(static_cast<int64_t>(number_at(from, i))) >= limit;
      }
      if (outside) return g;
    }
  }
  return -1;
}

POPGEO_CLONES int64_t first_outside_64(const int64_t* values, int64_t outer, int64_t rows, int64_t inner,
                                       const int64_t* row_pointer, const int64_t* limits, int64_t width, int64_t n) {
  return first_outside<int64_t>(values, outer, rows, inner, row_pointer, limits, width, n);
}

POPGEO_CLONES int64_t first_outside_32(const int32_t* values, int64_t outer, int64_t rows, int64_t inner,
                                       const int64_t* row_pointer, const int64_t* limits, int64_t width, int64_t n) {
  return first_outside<int32_t>(values, outer, rows, inner, row_pointer, limits, width, n);
}

}  // namespace

// Returns the first graph with a value below 0, or not below its limit for the row; -1 if there is none.
// values: [outer, rows, inner]; row_pointer: [num_graphs + 1]; limits: [num_graphs, width], for outer row o number o % width
extern "C" __attribute__((visibility("default"))) int64_t popgeo_first_outside(
    const void* values, int64_t element_bytes, int64_t outer, int64_t rows, int64_t inner, const int64_t* row_pointer,
    const int64_t* limits, int64_t width, int64_t num_graphs) {
  if (element_bytes == 8) {
    return first_outside_64(static_cast<const int64_t*>(values), outer, rows, inner, row_pointer, limits, width,
                            num_graphs);
  }
  return first_outside_32(static_cast<const int32_t*>(values), outer, rows, inner, row_pointer, limits, width,
                          num_graphs);
}
