// Matrix products of what lies in cache, with the same bits for every width of vectors: each element of a result is one
// chain of fused multiply-adds in the order of what is summed.
#pragma once

#include "interaction.h"
#include "vectors.h"

#ifdef POPGEO_HAS_FMA
namespace popgeo {
namespace POPGEO_ISA {

// What is summed for a group of rows: [begin, end).
struct Span {
  int64_t begin, end;
};

// Rows of memory: as many numbers as the widest vectors have.
constexpr int64_t LINE = 16;

// The sum of what `add` adds to the numbers from k on, in as many chains as a line has numbers, for every width of
// vectors; these are then added two by two.
template <class Add>
inline float sum_in_chains(Span lines, Add add) {
  floats sums[LINE / LANES] = {};
  for (int64_t k = lines.begin; k < lines.end; k += LINE)
    for (int64_t v = 0; v < LINE / LANES; ++v) sums[v] = add(k + v * LANES, sums[v]);
  float chains[LINE];
  memcpy(chains, sums, sizeof(chains));
  for (int64_t half = LINE / 2; half; half /= 2)
    for (int64_t i = 0; i < half; ++i) chains[i] += chains[i + half];
  return chains[0];
}

// As many rows and vectors of a result as fit the registers beside what they are made of.
#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int TILE_ROWS = 8, TILE_VECTORS = 3;
#else
constexpr int TILE_ROWS = 4, TILE_VECTORS = 3;
#endif
static_assert(GROUP % TILE_ROWS == 0, "a tile lies within a group");

// DOWN: the rows of the result are the columns of `a`, and the sum goes down its rows.
template <bool DOWN, int VECTORS>
inline void tile(const float* a, int64_t a_row, const float* b, int64_t b_row, Span span, const float* start, float* c,
                 int64_t c_row, bool adds) {
  floats sums[TILE_ROWS][VECTORS];
#pragma GCC unroll 8
  for (int row = 0; row < TILE_ROWS; ++row)
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; ++v) sums[row][v] = start ? load(start + v * LANES) : floats{};
  a += DOWN ? span.begin * a_row : span.begin;
  b += span.begin * b_row;
  for (int64_t k = span.begin; k < span.end; ++k) {
    floats columns[VECTORS];
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; ++v) columns[v] = load(b + v * LANES);
#pragma GCC unroll 8
    for (int row = 0; row < TILE_ROWS; ++row) {
      const floats value = splat(DOWN ? a[row] : a[row * a_row]);
#pragma GCC unroll 3
      for (int v = 0; v < VECTORS; ++v) sums[row][v] = fma(value, columns[v], sums[row][v]);
    }
    a += DOWN ? a_row : 1;
    b += b_row;
  }
#pragma GCC unroll 8
  for (int row = 0; row < TILE_ROWS; ++row)
#pragma GCC unroll 3
    for (int v = 0; v < VECTORS; ++v) {
      float* to = c + row * c_row + v * LANES;
      store(to, adds ? load(to) + sums[row][v] : sums[row][v]);
    }
}

// c = a b, or a^T b where DOWN, plus `start` in every row or plus what c holds. `spans` has one for each group of rows;
// rows are made in whole groups, and columns in whole vectors.
template <bool DOWN>
inline void product(int64_t rows, int64_t columns, const float* a, int64_t a_row, const float* b, int64_t b_row,
                    const Span* spans, const float* start, float* c, int64_t c_row, bool adds) {
  const int64_t width = (columns + LANES - 1) / LANES * LANES;
  for (int64_t column = 0; column < width;) {
    const int64_t vectors = (width - column) / LANES;
    const float* first = start ? start + column : nullptr;
    for (int64_t row = 0; row < rows; row += TILE_ROWS) {
      const float* from = DOWN ? a + row : a + row * a_row;
      const Span span = spans[row / GROUP];
      float* to = c + row * c_row + column;
      if (vectors >= TILE_VECTORS)
        tile<DOWN, TILE_VECTORS>(from, a_row, b + column, b_row, span, first, to, c_row, adds);
      else if (vectors == 2)
        tile<DOWN, 2>(from, a_row, b + column, b_row, span, first, to, c_row, adds);
      else
        tile<DOWN, 1>(from, a_row, b + column, b_row, span, first, to, c_row, adds);
    }
    column += (vectors < TILE_VECTORS ? vectors : TILE_VECTORS) * LANES;
  }
}

}  // namespace POPGEO_ISA
}  // namespace popgeo
#endif
