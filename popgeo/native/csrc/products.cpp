// Products with one small matrix: a layer's weights, or their gradient. Each element of a result is a sum of fused
// multiply-adds in one order. So it is the same for any number of threads, for any other rows, and on all processors with
// fused multiply-adds. A sum `in_order` is one chain over all terms, so that terms of zero change no bit of it; other sums
// add up the terms of each block first, which loses fewer digits.
// The file is compiled once per instruction set (see setup.py); run_products.cpp chooses.
#include "products.h"

#include "denormals.h"
#include "vectors.h"

#if defined(__AVX2__)  // of other processors it is not known whether torch is slower

namespace popgeo {
namespace POPGEO_ISA {

#if defined(__AVX512F__)
constexpr int MOST_VECTORS = 4;  // of a row of a block, whose sums and operands fill the registers
#else
constexpr int MOST_VECTORS = 2;
#endif
constexpr int MOST_ROWS = 6;                // of a block
constexpr int64_t INNER = 256;              // terms that are added to a block before the next block
constexpr int64_t COLUMNS = 512;            // of the second matrix that are laid out together
constexpr int64_t PARALLEL_WORK = 1 << 18;  // terms; for fewer a parallel region costs more than it saves

template <class T>
struct Terms {
  const T* a;
  const T* b;  // [num_inner, b_inner]
  T* out;
  int64_t a_stride, b_inner, out_rows, num_inner;
  int last;       // columns of the last vector that the result has
  bool in_order;  // whether sums go on from the result so far
};

// The first numbers of a vector.
#if defined(__AVX512F__)
inline floats load_some(const float* from, int count) {
  return bit_cast<floats>(_mm512_maskz_loadu_ps(__mmask16((1u << count) - 1), from));
}
inline doubles load_some(const double* from, int count) {
  return bit_cast<doubles>(_mm512_maskz_loadu_pd(__mmask8((1u << count) - 1), from));
}
inline void store_some(float* to, floats numbers, int count) {
  _mm512_mask_storeu_ps(to, __mmask16((1u << count) - 1), bit_cast<__m512>(numbers));
}
inline void store_some(double* to, doubles numbers, int count) {
  _mm512_mask_storeu_pd(to, __mmask8((1u << count) - 1), bit_cast<__m512d>(numbers));
}
#else
template <class T>
inline typename Vector<T>::type load_some(const T* from, int count) {
  typename Vector<T>::type numbers = {};
  for (int i = 0; i < count; ++i) numbers[i] = from[i];
  return numbers;
}
template <class T>
inline void store_some(T* to, typename Vector<T>::type numbers, int count) {
  for (int i = 0; i < count; ++i) to[i] = numbers[i];
}
#endif

// Adds terms to a block of ROWS rows of VECTORS vectors. A is [rows, inner], or [inner, rows] where it is TURNED.
template <class T, int ROWS, int VECTORS, bool TURNED>
void add_terms(const Terms<T>& terms) {
  using V = typename Vector<T>::type;
  constexpr int L = Vector<T>::lanes;
  const auto before = [&](const T* from, int v) {
    return v == VECTORS - 1 && terms.last < L ? load_some(from, terms.last) : load(from);
  };
  V sums[ROWS][VECTORS] = {};
  if (terms.in_order) {
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; ++v) sums[r][v] = before(terms.out + r * terms.out_rows + v * L, v);
  }
  const T *a = terms.a, *b = terms.b;
  const int64_t rows = TURNED ? 1 : terms.a_stride, inner = TURNED ? terms.a_stride : 1;
  for (int64_t p = 0; p < terms.num_inner; ++p, a += inner, b += terms.b_inner) {
    V row[VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) row[v] = load(b + v * L);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
      const V each = splat(a[r * rows]);
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; ++v) sums[r][v] = fma(each, row[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) {
      T* to = terms.out + r * terms.out_rows + v * L;
      const V sum = terms.in_order ? sums[r][v] : before(to, v) + sums[r][v];
      if (v == VECTORS - 1 && terms.last < L)
        store_some(to, sum, terms.last);
      else
        store(to, sum);
    }
}

template <class T, int VECTORS, bool TURNED>
void add_rows(const Terms<T>& terms, int64_t num_rows) {
  switch (num_rows) {
    case 1: return add_terms<T, 1, VECTORS, TURNED>(terms);
    case 2: return add_terms<T, 2, VECTORS, TURNED>(terms);
    case 3: return add_terms<T, 3, VECTORS, TURNED>(terms);
    case 4: return add_terms<T, 4, VECTORS, TURNED>(terms);
    case 5: return add_terms<T, 5, VECTORS, TURNED>(terms);
    default: return add_terms<T, 6, VECTORS, TURNED>(terms);
  }
}

template <class T, bool TURNED>
void add_vectors(const Terms<T>& terms, int64_t num_rows, int64_t num_vectors) {
  if (num_vectors == 1) return add_rows<T, 1, TURNED>(terms, num_rows);
  if (num_vectors == 2) return add_rows<T, 2, TURNED>(terms, num_rows);
#if defined(__AVX512F__)
  if (num_vectors == 3) return add_rows<T, 3, TURNED>(terms, num_rows);
  return add_rows<T, 4, TURNED>(terms, num_rows);
#endif
}

// The second matrix in panels of as many columns as a block has, [num_inner, columns of the panel], filled up with zeros.
template <class T>
void lay_out(const T* b, int64_t inner, int64_t columns, int64_t num_inner, int64_t num_columns, T* to) {
  constexpr int64_t L = Vector<T>::lanes, WIDTH = MOST_VECTORS * L;
  for (int64_t start = 0; start < num_columns; start += WIDTH) {
    const int64_t real = num_columns - start < WIDTH ? num_columns - start : WIDTH, width = (real + L - 1) / L * L;
    const T* from = b + start * columns;
    if (columns == 1) {
      for (int64_t p = 0; p < num_inner; ++p) {
        memcpy(to + p * width, from + p * inner, size_t(real) * sizeof(T));
        for (int64_t c = real; c < width; ++c) to[p * width + c] = 0;
      }
    } else {
      for (int64_t c = 0; c < real; ++c)
        for (int64_t p = 0; p < num_inner; ++p) to[p * width + c] = from[c * columns + p * inner];
      for (int64_t c = real; c < width; ++c)
        for (int64_t p = 0; p < num_inner; ++p) to[p * width + c] = 0;
    }
    to += num_inner * width;
  }
}

// Rows [begin, end) of one product; `panels` holds INNER x COLUMNS elements.
template <class T, bool TURNED>
void rows_of_product(const MatrixProduct& m, const T* a, const T* b, T* out, int64_t begin, int64_t end, T* panels) {
  constexpr int64_t L = Vector<T>::lanes, WIDTH = MOST_VECTORS * L;
  const int64_t a_stride = TURNED ? m.a_inner : m.a_rows;
  for (int64_t column = 0; column < m.num_columns; column += COLUMNS) {
    const int64_t num_columns = m.num_columns - column < COLUMNS ? m.num_columns - column : COLUMNS;
    for (int64_t term = 0; term < m.num_inner; term += INNER) {
      const int64_t num_inner = m.num_inner - term < INNER ? m.num_inner - term : INNER;
      const T* from = b + term * m.b_inner + column * m.b_columns;
      const bool as_it_is = m.b_columns == 1 && num_columns % L == 0;
      if (!as_it_is) lay_out(from, m.b_inner, m.b_columns, num_inner, num_columns, panels);
      for (int64_t start = 0; start < num_columns; start += WIDTH) {
        const int64_t real = num_columns - start < WIDTH ? num_columns - start : WIDTH, width = (real + L - 1) / L * L;
        const T* panel = as_it_is ? from + start : panels + start * num_inner;
        for (int64_t row = begin; row < end; row += MOST_ROWS) {
          const int64_t num_rows = end - row < MOST_ROWS ? end - row : MOST_ROWS;
          T* to = out + row * m.out_rows + column + start;
          const Terms<T> terms = {a + row * m.a_rows + term * m.a_inner, panel, to, a_stride,
                                  as_it_is ? m.b_inner : width, m.out_rows, num_inner, int(real - (width - L)),
                                  m.in_order != 0};
          add_vectors<T, TURNED>(terms, num_rows, width / L);
        }
      }
    }
  }
}

template <class T>
void begin_sums(const MatrixProduct& m, const T* first, T* out, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    T* to = out + row * m.out_rows;
    if (first)
      memcpy(to, first + row * m.first_rows, size_t(m.num_columns) * sizeof(T));
    else
      memset(to, 0, size_t(m.num_columns) * sizeof(T));
  }
}

// The sum of products of two rows of adjacent numbers, in sixteen partial sums on every processor.
template <class T, int ROWS>
void add_dots(const T* a, int64_t a_rows, const T* b, int64_t num_inner, T* out, int64_t out_rows) {
  using V = typename Vector<T>::type;
  constexpr int L = Vector<T>::lanes, PARTS = 16 / L;
  V sums[ROWS][PARTS] = {};
  int64_t p = 0;
  for (; p + 16 <= num_inner; p += 16)
#pragma GCC unroll 8
    for (int v = 0; v < PARTS; ++v) {
      const V with = load(b + p + v * L);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; ++r) sums[r][v] = fma(load(a + r * a_rows + p + v * L), with, sums[r][v]);
    }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r) {
    T lanes[16];
    memcpy(lanes, sums[r], sizeof(lanes));
    for (int64_t q = p; q < num_inner; ++q) lanes[q - p] = __builtin_fma(a[r * a_rows + q], b[q], lanes[q - p]);
    for (int half = 8; half; half /= 2)
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    out[r * out_rows] += lanes[0];
  }
}

// Rows [begin, end) of a product with few columns, whose elements are sums of products of rows.
template <class T>
void rows_of_dots(const MatrixProduct& m, const T* a, const T* b, T* out, int64_t begin, int64_t end, T* panel) {
  constexpr int64_t MOST = INNER * COLUMNS;
  for (int64_t column = 0; column < m.num_columns; ++column, b += m.b_columns)
    for (int64_t term = 0; term < m.num_inner; term += MOST) {
      const int64_t num_inner = m.num_inner - term < MOST ? m.num_inner - term : MOST;
      const T* with = b + term * m.b_inner;
      if (m.b_inner != 1) {
        for (int64_t p = 0; p < num_inner; ++p) panel[p] = with[p * m.b_inner];
        with = panel;
      }
      int64_t row = begin;
      for (; row + 4 <= end; row += 4)
        add_dots<T, 4>(a + row * m.a_rows + term, m.a_rows, with, num_inner, out + row * m.out_rows + column, m.out_rows);
      for (; row < end; ++row)
        add_dots<T, 1>(a + row * m.a_rows + term, m.a_rows, with, num_inner, out + row * m.out_rows + column, m.out_rows);
    }
}

constexpr int64_t FEW_COLUMNS = 4;  // fewer leave most of a vector register empty

// A column times turned rows is a row times a matrix.
inline MatrixProduct as_row(MatrixProduct m) {
  if (m.num_columns != 1 || m.a_inner == 1 || m.out_rows != 1 || m.first) return m;
  const MatrixProduct given = m;
  m.a = given.b, m.a_rows = 1, m.a_inner = given.b_inner, m.a_matrix = given.b_matrix, m.num_rows = 1;
  m.b = given.a, m.b_inner = given.a_inner, m.b_columns = given.a_rows, m.b_matrix = given.a_matrix;
  m.num_columns = given.num_rows, m.out_rows = given.num_rows;
  return m;
}

// Threads share blocks of rows, or matrices if a batch has at least as many matrices as threads.
template <class T>
void multiply_as(const MatrixProduct& given) {
  const MatrixProduct m = as_row(given);
  if (!(m.num_matrices && m.num_rows && m.num_columns)) return;
  const bool of_dots = m.a_inner == 1 && m.num_columns < FEW_COLUMNS && !m.in_order;
  const uint64_t of_caller = denormals();
  const int64_t blocks = (m.num_rows + MOST_ROWS - 1) / MOST_ROWS;
  const bool is_parallel = m.num_threads > 1 && blocks * m.num_matrices * m.num_inner * m.num_columns >= PARALLEL_WORK;
  const int64_t wanted = is_parallel && m.num_matrices < m.num_threads ? m.num_threads : 1;
  const int64_t parts = blocks < wanted ? blocks : wanted, each = (blocks + parts - 1) / parts * MOST_ROWS;
#ifdef _OPENMP
#pragma omp parallel num_threads(int(m.num_threads)) if (is_parallel)
#endif
  {
    const Denormals same(of_caller);
    alignas(64) static thread_local T panels[INNER * COLUMNS];
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
    for (int64_t job = 0; job < m.num_matrices * parts; ++job) {
      const int64_t matrix = job / parts, begin = job % parts * each;
      const int64_t end = begin + each < m.num_rows ? begin + each : m.num_rows;
      const T* a = static_cast<const T*>(m.a) + matrix * m.a_matrix;
      const T* b = static_cast<const T*>(m.b) + matrix * m.b_matrix;
      const T* first = m.first ? static_cast<const T*>(m.first) + matrix * m.first_matrix : nullptr;
      T* out = static_cast<T*>(m.out) + matrix * m.out_matrix;
      begin_sums(m, first, out, begin, end);
      if (of_dots)
        rows_of_dots<T>(m, a, b, out, begin, end, panels);
      else if (m.a_inner == 1)
        rows_of_product<T, false>(m, a, b, out, begin, end, panels);
      else
        rows_of_product<T, true>(m, a, b, out, begin, end, panels);
    }
  }
}

#include "graph_sums.h"

void sum_graphs(const GraphSum& of) {
  if (of.terms[0].is_double)
    sum_as<double>(of);
  else
    sum_as<float>(of);
}

void multiply(const MatrixProduct& m) {
  if (m.is_double)
    multiply_as<double>(m);
  else
    multiply_as<float>(m);
}

}  // namespace POPGEO_ISA
}  // namespace popgeo

#endif
