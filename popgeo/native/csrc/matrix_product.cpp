// Products of matrices that are small, and of sizes that large blocks do not fit, such as 576 x 100 times 100 x 100.
//
// Each element of a result is a chain of fused multiply-adds for each part of the depth, in order: the same bits for any
// width of vectors and any number of threads. The file is compiled once per instruction set (see setup.py).
#include "matrix_product.h"

#include "denormals.h"
#include "vectors.h"

namespace popgeo {
namespace POPGEO_ISA {

#ifdef POPGEO_HAS_FMA

// As many rows and vectors of a result as fit the registers beside what they are made of.
#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int PRODUCT_ROWS = 8, PRODUCT_VECTORS = 3;
#else
constexpr int PRODUCT_ROWS = 4, PRODUCT_VECTORS = 3;
#endif
constexpr int64_t DEPTH = 256;  // of one part: what it takes of b stays in the first cache
constexpr int64_t PARALLEL_PRODUCTS = 1 << 22;

struct Operands {
  const MatrixProduct& call;
  const float *b, *last, *bias;  // whole vectors can be read from each row of b but the last one, which is apart
  int64_t b_row;
};

inline Operands prepare(const MatrixProduct& call) {
  const int64_t width = whole_vectors(call.columns);
  float* free = call.workspace;
  memset(free, 0, sizeof(float) * size_t(width));
  if (call.bias) memcpy(free, call.bias, sizeof(float) * size_t(call.columns));
  const float* bias = free;
  free += width;
  if (is_read_in_place(call)) {
    memset(free, 0, sizeof(float) * size_t(width));
    memcpy(free, call.b + (call.depth - 1) * call.b_row, sizeof(float) * size_t(call.columns));
    return {call, call.b, free, bias, call.b_row};
  }
  constexpr int64_t SQUARE = 16;  // both sides of the transposition stay in cache
  for (int64_t first = 0; first < call.depth; first += SQUARE) {
    const int64_t end = first + SQUARE < call.depth ? first + SQUARE : call.depth;
    for (int64_t column = 0; column < width; ++column)
      for (int64_t k = first; k < end; ++k)
        free[k * width + column] = column < call.columns ? call.b[k * call.b_row + column * call.b_column] : 0.0f;
  }
  return {call, free, free + (call.depth - 1) * width, bias, width};
}

template <int ROWS, int VECTORS>
inline void step(const float* a, int64_t a_row, const float* b, floats (&sums)[ROWS][VECTORS]) {
  floats columns[VECTORS];
#pragma GCC unroll 3
  for (int v = 0; v < VECTORS; ++v) columns[v] = load(b + v * LANES);
#pragma GCC unroll 8
  for (int row = 0; row < ROWS; ++row) {
    const floats value = splat(a[row * a_row]);
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; ++v) sums[row][v] = fma(value, columns[v], sums[row][v]);
  }
}

// The part [begin, end) of the depth for ROWS rows and VECTORS vectors of the result from `column` on.
template <int ROWS, int VECTORS>
inline void tile(const Operands& given, int64_t row, int64_t column, int64_t begin, int64_t end) {
  const MatrixProduct& call = given.call;
  floats sums[ROWS][VECTORS];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; ++v) sums[r][v] = begin ? floats{} : load(given.bias + column + v * LANES);
  const float* a = call.a + row * call.a_row + begin * call.a_column;
  const float* b = given.b + begin * given.b_row + column;
  const int64_t whole = end < call.depth ? end : call.depth - 1;
  const int64_t a_row = call.a_row;
  for (int64_t k = begin; k < whole; ++k, a += call.a_column, b += given.b_row) step<ROWS, VECTORS>(a, a_row, b, sums);
  if (end == call.depth) step<ROWS, VECTORS>(a, a_row, given.last + column, sums);
  float* to = call.c + row * call.columns + column;
  const int64_t left = call.columns - column;
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r, to += call.columns)
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; ++v) {
      if ((v + 1) * LANES <= left) {
        store(to + v * LANES, begin ? load(to + v * LANES) + sums[r][v] : sums[r][v]);
        continue;
      }
      const size_t bytes = sizeof(float) * size_t(left - v * LANES);
      float edge[LANES] = {};
      if (begin) memcpy(edge, to + v * LANES, bytes);
      store(edge, begin ? load(edge) + sums[r][v] : sums[r][v]);
      memcpy(to + v * LANES, edge, bytes);
    }
}

template <int ROWS>
inline void rows_of(const Operands& given, int64_t row, int64_t column, int64_t vectors, int64_t begin, int64_t end) {
  if (vectors >= PRODUCT_VECTORS)
    tile<ROWS, PRODUCT_VECTORS>(given, row, column, begin, end);
  else if (vectors == 2)
    tile<ROWS, 2>(given, row, column, begin, end);
  else
    tile<ROWS, 1>(given, row, column, begin, end);
}

// All columns of the rows [first, last).
inline void band(const Operands& given, int64_t first, int64_t last) {
  const MatrixProduct& call = given.call;
  for (int64_t begin = 0; begin < call.depth; begin += DEPTH) {
    const int64_t end = begin + DEPTH < call.depth ? begin + DEPTH : call.depth;
    for (int64_t column = 0; column < call.columns; column += PRODUCT_VECTORS * LANES) {
      const int64_t vectors = (call.columns - column + LANES - 1) / LANES;
      int64_t row = first;
      for (; row + PRODUCT_ROWS <= last; row += PRODUCT_ROWS)
        rows_of<PRODUCT_ROWS>(given, row, column, vectors, begin, end);
      for (; row + PRODUCT_ROWS / 2 <= last; row += PRODUCT_ROWS / 2)
        rows_of<PRODUCT_ROWS / 2>(given, row, column, vectors, begin, end);
      for (; row < last; ++row) rows_of<1>(given, row, column, vectors, begin, end);
    }
  }
}

void matrix_product(const MatrixProduct& call) {
  const Operands given = prepare(call);
  constexpr int64_t BAND = 8 * PRODUCT_ROWS;
  const int64_t bands = (call.rows + BAND - 1) / BAND;
  const bool is_parallel = call.num_threads > 1 && call.rows * call.columns * call.depth >= PARALLEL_PRODUCTS;
  if (!is_parallel) return band(given, 0, call.rows);
  const uint64_t of_caller = denormals();
#ifdef _OPENMP
#pragma omp parallel num_threads(int(call.num_threads))
#endif
  {
    const Denormals same(of_caller);
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
    for (int64_t i = 0; i < bands; ++i) band(given, i * BAND, (i + 1) * BAND < call.rows ? (i + 1) * BAND : call.rows);
  }
}

#endif

}  // namespace POPGEO_ISA
}  // namespace popgeo
