// Gradients as sums over the rows of each graph and then over graphs in halves. Included by products.cpp, within its
// namespace and after its kernels.

constexpr int64_t SUMMED_COLUMNS = 64;  // of a block of a gradient, whose open sums stay in the cache
constexpr int MOST_DOUBLINGS = 24;      // of the number of graphs

// A block of a gradient: rows from `begin`, columns from `column`.
template <class T>
struct GradientBlock {
  static constexpr int64_t SIZE = MOST_ROWS * SUMMED_COLUMNS;
  const GraphSum& of;
  int64_t begin, num_rows, column, num_columns;
  T* panels;

  // Writes the sum of the graphs [first, end) to `total`; the memory behind it holds sums of fewer graphs.
  void add(int64_t first, int64_t end, T* total) const {
    if (end - first > 1) {
      const int64_t middle = first + (end - first) / 2;
      add(first, middle, total);
      add(middle, end, total + SIZE);
      for (int64_t i = 0; i < num_rows * SUMMED_COLUMNS; ++i) total[i] += total[SIZE + i];
      return;
    }
    memset(total, 0, sizeof(T) * size_t(num_rows * SUMMED_COLUMNS));
    for (int64_t k = 0; k < of.num_terms; ++k) {
      const int64_t* rows = of.first_rows[k] + 1 + first;  // after the number of graphs
      MatrixProduct m = of.terms[k];
      m.num_inner = rows[1] - rows[0], m.num_columns = num_columns, m.out_rows = SUMMED_COLUMNS, m.in_order = 1;
      const T* a = static_cast<const T*>(m.a) + begin * m.a_rows + rows[0] * m.a_inner;
      const T* b = static_cast<const T*>(m.b) + rows[0] * m.b_inner + column * m.b_columns;
      if (m.a_inner == 1)
        rows_of_product<T, false>(m, a, b, total, 0, num_rows, panels);
      else
        rows_of_product<T, true>(m, a, b, total, 0, num_rows, panels);
    }
  }
};

template <class T>
void sum_as(const GraphSum& of) {
  const MatrixProduct& m = of.terms[0];
  const int64_t down = (m.num_rows + MOST_ROWS - 1) / MOST_ROWS;
  const int64_t across = (m.num_columns + SUMMED_COLUMNS - 1) / SUMMED_COLUMNS;
  const bool is_parallel = of.num_threads > 1 && m.num_rows * m.num_columns * m.num_inner >= PARALLEL_WORK;
  const uint64_t of_caller = denormals();
#ifdef _OPENMP
#pragma omp parallel num_threads(int(of.num_threads)) if (is_parallel)
#endif
  {
    const Denormals same(of_caller);
    alignas(64) static thread_local T panels[INNER * SUMMED_COLUMNS], sums[MOST_DOUBLINGS * GradientBlock<T>::SIZE];
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
    for (int64_t job = 0; job < down * across; ++job) {
      const int64_t begin = job / across * MOST_ROWS, column = job % across * SUMMED_COLUMNS;
      const int64_t num_rows = m.num_rows - begin < MOST_ROWS ? m.num_rows - begin : MOST_ROWS;
      const int64_t num_columns = m.num_columns - column < SUMMED_COLUMNS ? m.num_columns - column : SUMMED_COLUMNS;
      GradientBlock<T>{of, begin, num_rows, column, num_columns, panels}.add(0, of.first_rows[0][0], sums);
      for (int64_t r = 0; r < num_rows; ++r)
        memcpy(static_cast<T*>(m.out) + (begin + r) * m.out_rows + column, sums + r * SUMMED_COLUMNS,
               sizeof(T) * size_t(num_columns));
    }
  }
}
