// Sums over the edges that arrive at each row: scatter-add, its extremes, and SchNet's convolution with its gradients.
//
// One thread sums narrow rows edge by edge. Otherwise rows are divided over tiles: a tile walks its rows in order and the
// edges of each row in the order of the index, holds the row in registers and writes it once: no atomics, no zero fill,
// the same bits for any number of tiles and threads. The file is compiled once per instruction set (see setup.py);
// gather_scatter.cpp picks among them. No function allocates, none throws.
#include "denormals.h"
#include "kernels.h"
#include "vectors.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace popgeo {
namespace POPGEO_ISA {

constexpr int64_t STREAM_BYTES = 3 << 20;      // results above it, written in any order, bypass the caches
constexpr int64_t PREFETCH_FLOATS = 2048;      // how far ahead rows are fetched, at 4 to 32 edges
constexpr int64_t CLEARED_BYTES = 12 << 20;    // results as large, nearly all of them clear, bypass them too
constexpr int64_t FETCHED_BYTES = 8 << 20;     // rows read in order, up to as many, the processor fetches by itself

template <class Tile>
inline void for_each_tile(const Plan& plan, int64_t channels, Tile tile) {
  const bool parallel = is_parallel(plan, channels);
  const int64_t num_tiles = plan.num_tiles > 0 ? plan.num_tiles : parallel ? 8 * plan.num_threads : 1;
  if (num_tiles == 1) return tile(int64_t(0), plan.num_rows);
  const uint64_t of_caller = denormals();
#ifdef _OPENMP
#pragma omp parallel num_threads(int(plan.num_threads)) if (parallel)
#endif
  {
    const Denormals same(of_caller);
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 1)
#endif
    for (int64_t t = 0; t < num_tiles; ++t) tile(tile_start(plan, t, num_tiles), tile_start(plan, t + 1, num_tiles));
  }
}

inline int64_t edges_ahead(int64_t channels) {
  const int64_t ahead = PREFETCH_FLOATS / (channels > 0 ? channels : 1);
  return ahead < 4 ? 4 : ahead > 32 ? 32 : ahead;
}

// Rows that are read again soon are fetched into the first cache (KEEP 3), those that pass once into the second (2).
template <int BYTES, int KEEP>
inline void prefetch(const void* row) {
#pragma GCC unroll 16
  for (int offset = 0; offset < BYTES; offset += 64) __builtin_prefetch(static_cast<const char*>(row) + offset, 0, KEEP);
}

// COUNT vectors of a row: side by side, except that the last one ends where the row ends and so may overlap the one
// before it. Both then compute the same values for the channels that they share.
template <class T, int COUNT>
struct Columns {
  using Lane = typename Sum<T>::type;
  using Vec = typename Vector<Lane>::type;
  static constexpr int count = COUNT;
  static constexpr int bytes = COUNT * Vector<Lane>::lanes * sizeof(T);
  int64_t first, last;  // the last one is counted from the first
  int64_t operator[](int i) const { return i + 1 < COUNT ? i * Vector<Lane>::lanes : last; }
};

// Calls body(Columns) for each block of columns. Thirteen vectors and what is computed with them are as many as sixteen
// registers can hold, but rows of sixteen are still better read at once; most rows take blocks of eight.
template <class T, class Body>
inline void for_each_block(int64_t channels, Body body) {
  constexpr int64_t lanes = Vector<typename Sum<T>::type>::lanes;
  int64_t first = 0;
  int64_t left = (channels + lanes - 1) / lanes;
  for (; left > 8 && left != 13 && left != 16; left -= 8, first += 8 * lanes) body(Columns<T, 8>{first, 7 * lanes});
  const int64_t last = channels - lanes - first;
  switch (left) {
    case 1: return body(Columns<T, 1>{first, last});
    case 2: return body(Columns<T, 2>{first, last});
    case 3: return body(Columns<T, 3>{first, last});
    case 4: return body(Columns<T, 4>{first, last});
    case 5: return body(Columns<T, 5>{first, last});
    case 6: return body(Columns<T, 6>{first, last});
    case 7: return body(Columns<T, 7>{first, last});
    case 8: return body(Columns<T, 8>{first, last});
    case 13: return body(Columns<T, 13>{first, last});
    case 16: return body(Columns<T, 16>{first, last});
  }
}

// A row narrower than a vector, channel by channel.
template <class T>
inline bool is_narrow(int64_t channels) {
  return channels < Vector<typename Sum<T>::type>::lanes;
}

// Sum ---------------------------------------------------------------------------------------------------------------

template <class T, class C>
inline void sum_block(const Plan& plan, int64_t row, const T* src, T* out, int64_t channels, int64_t ahead, C columns) {
  typename C::Vec total[C::count] = {};
  const int32_t* perm = plan.perm;
  const int64_t last_edge = plan.num_edges - 1, end = plan.rowptr[row + 1];
  src += columns.first;
  for (int64_t p = plan.rowptr[row]; p < end; ++p) {
    const int64_t later = p + ahead < last_edge ? p + ahead : last_edge;
    if (ahead) prefetch<C::bytes, 2>(src + (perm ? perm[later] : later) * channels);
    const T* from = src + (perm ? perm[p] : p) * channels;
#pragma GCC unroll 16
    for (int i = 0; i < C::count; ++i) total[i] += load(from + columns[i]);
  }
  out += row * channels + columns.first;
#pragma GCC unroll 16
  for (int i = 0; i < C::count; ++i) store(out + columns[i], total[i]);
}

template <class T>
void sum(const Plan& plan, const T* src, T* out, int64_t channels) {
  const bool fetches = plan.perm || plan.num_edges * channels * int64_t(sizeof(T)) > FETCHED_BYTES;
  const int64_t ahead = fetches ? edges_ahead(channels) : 0;
  for_each_tile(plan, channels, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (!is_narrow<T>(channels)) {
        for_each_block<T>(channels, [=](auto columns) { sum_block(plan, row, src, out, channels, ahead, columns); });
        continue;
      }
      for (int64_t c = 0; c < channels; ++c) {
        typename Sum<T>::type total = 0;
        for (int64_t p = plan.rowptr[row]; p < plan.rowptr[row + 1]; ++p)
          total += widen(src[(plan.perm ? plan.perm[p] : p) * channels + c]);
        out[row * channels + c] = Narrow<T>::of(total);
      }
    }
  });
}

// How many numbers of `count` stand before the next line of memory.
template <class T>
inline int64_t to_line(const T* data, int64_t count) {
  const int64_t before = int64_t((64 - reinterpret_cast<uintptr_t>(data) % 64) % 64 / sizeof(T));
  return before < count ? before : count;
}

template <class T>
inline void clear(T* out, int64_t count) {
  if (count * int64_t(sizeof(T)) < CLEARED_BYTES) {
    memset(out, 0, sizeof(T) * size_t(count));
    return;
  }
  constexpr int64_t lanes = Vector<T>::lanes;
  int64_t i = to_line(out, count);
  memset(out, 0, sizeof(T) * size_t(i));
  for (; i + lanes <= count; i += lanes) stream(out + i, typename Vector<T>::type{});
  memset(out + i, 0, sizeof(T) * size_t(count - i));
  finish_stream();
}

// The same sums by one thread that walks the edges in their order: each row meets its own in the same order as above.
template <class T>
void add(const int64_t* index, int64_t num_edges, int64_t num_rows, const T* src, T* out, int64_t channels) {
  constexpr int64_t lanes = Vector<T>::lanes;
  const int64_t ahead = edges_ahead(channels);
  if (num_rows == 0 || channels == 0) return;
  clear(out, num_rows * channels);
  for (int64_t e = 0; e < num_edges; ++e) {
    const T* from = src + e * channels;
    T* to = out + index[e] * channels;
    const T* next = out + index[e + ahead < num_edges ? e + ahead : e] * channels;
    for (int64_t c = 0; c < channels; c += 64 / int64_t(sizeof(T))) __builtin_prefetch(next + c, 1, 3);
    int64_t c = 0;
    for (; c + lanes <= channels; c += lanes) store(to + c, load(to + c) + load(from + c));
    for (; c < channels; ++c) to[c] += from[c];
  }
}

// Extremes ----------------------------------------------------------------------------------------------------------

template <bool LARGEST, class T>
void extremum(const Plan& plan, const T* src, T* out, int64_t* arg, int64_t channels) {
  constexpr int64_t WIDTH = 32;
  const int32_t none = int32_t(plan.num_edges);
  for_each_tile(plan, channels, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t first = 0; first < channels; first += WIDTH) {
        const int64_t width = channels - first < WIDTH ? channels - first : WIDTH;
        typename Sum<T>::type best[WIDTH] = {};
        int32_t from[WIDTH];
        for (int64_t c = 0; c < width; ++c) from[c] = none;
        for (int64_t p = plan.rowptr[row]; p < plan.rowptr[row + 1]; ++p) {
          const int32_t edge = plan.perm ? plan.perm[p] : int32_t(p);
          const T* values = src + int64_t(edge) * channels + first;
          for (int64_t c = 0; c < width; ++c) {
            const auto value = widen(values[c]);
            const bool better = LARGEST ? value > best[c] : value < best[c];
            const bool wins = from[c] == none ? value == value : better;  // a NaN never wins
            best[c] = wins ? value : best[c];
            from[c] = wins ? edge : from[c];
          }
        }
        for (int64_t c = 0; c < width; ++c) {
          out[row * channels + first + c] = Narrow<T>::of(best[c]);
          arg[row * channels + first + c] = from[c];
        }
      }
  });
}

// SchNet's convolution ----------------------------------------------------------------------------------------------

template <class T, class C>
inline void cfconv_block(const Plan& plan, int64_t row, const T* x, const T* w, const int64_t* src, T* out,
                         int64_t channels, int64_t ahead, bool fetches, C columns) {
  typename C::Vec total[C::count] = {};
  const int32_t* perm = plan.perm;
  const int64_t last_edge = plan.num_edges - 1, end = plan.rowptr[row + 1];
  x += columns.first;
  w += columns.first;
  for (int64_t p = plan.rowptr[row]; p < end; ++p) {
    const int64_t later = p + ahead < last_edge ? p + ahead : last_edge;
    const int64_t next = perm ? perm[later] : later;
    if (fetches) prefetch<C::bytes, 2>(w + next * channels);
    prefetch<C::bytes, 3>(x + src[next] * channels);
    const int64_t edge = perm ? perm[p] : p;
    const T* filter = w + edge * channels;
    const T* node = x + src[edge] * channels;
#pragma GCC unroll 16
    for (int i = 0; i < C::count; ++i) total[i] += load(node + columns[i]) * load(filter + columns[i]);
  }
  out += row * channels + columns.first;
#pragma GCC unroll 16
  for (int i = 0; i < C::count; ++i) store(out + columns[i], total[i]);
}

template <class T>
void cfconv(const Plan& plan, const T* x, const T* w, const int64_t* src, T* out, int64_t channels) {
  const int64_t ahead = edges_ahead(channels);
  const bool fetches = plan.perm || plan.num_edges * channels * int64_t(sizeof(T)) > FETCHED_BYTES;
  for_each_tile(plan, channels, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (!is_narrow<T>(channels)) {
        for_each_block<T>(channels, [=](auto columns) {
          cfconv_block(plan, row, x, w, src, out, channels, ahead, fetches, columns);
        });
        continue;
      }
      for (int64_t c = 0; c < channels; ++c) {
        typename Sum<T>::type total = 0;
        for (int64_t p = plan.rowptr[row]; p < plan.rowptr[row + 1]; ++p) {
          const int64_t edge = plan.perm ? plan.perm[p] : p;
          total += widen(x[src[edge] * channels + c]) * widen(w[edge * channels + c]);
        }
        out[row * channels + c] = Narrow<T>::of(total);
      }
    }
  });
}

// Writes a row past the caches, in vectors where a line of memory is whole and number by number at both ends.
template <class T>
inline void stream_product(T* to, const T* one, const T* two, int64_t channels) {
  constexpr int64_t line = 64 / sizeof(T), lanes = Vector<T>::lanes;
  const int64_t start = to_line(to, channels);
  const int64_t stop = start + (channels - start) / line * line;
  for (int64_t c = 0; c < start; ++c) stream(to + c, one[c] * two[c]);
  for (int64_t c = start; c < stop; c += lanes) stream(to + c, load(one + c) * load(two + c));
  for (int64_t c = stop; c < channels; ++c) stream(to + c, one[c] * two[c]);
}
inline void stream_product(bfloat16*, const bfloat16*, const bfloat16*, int64_t) {}
inline void stream_product(float16*, const float16*, const float16*, int64_t) {}

// One pass over the source rows gives both gradients: grad_w[e] = x[j] * grad[dst[e]], grad_x[j] += grad[dst[e]] * w[e].
template <class T, class C>
inline void backward_block(const Plan& plan, int64_t row, const T* grad, const T* x, const T* w, const int64_t* dst,
                           T* grad_x, T* grad_w, int64_t channels, int64_t ahead, bool streams, C columns) {
  typename C::Vec total[C::count] = {};
  const int32_t* perm = plan.perm;
  const int64_t last_edge = plan.num_edges - 1, end = plan.rowptr[row + 1];
  const T* node = x + row * channels + columns.first;
  grad += columns.first;
  w += columns.first;
  if (!streams) grad_w += columns.first;
  for (int64_t p = plan.rowptr[row]; p < end; ++p) {
    const int64_t later = p + ahead < last_edge ? p + ahead : last_edge;
    const int64_t next = perm ? perm[later] : later;
    prefetch<C::bytes, 2>(w + next * channels);
    prefetch<C::bytes, 3>(grad + dst[next] * channels);
    const int64_t edge = perm ? perm[p] : p;
    const T* filter = w + edge * channels;
    const T* from = grad + dst[edge] * channels;
#pragma GCC unroll 16
    for (int i = 0; i < C::count; ++i) {
      const typename C::Vec arriving = load(from + columns[i]);
      total[i] += arriving * load(filter + columns[i]);
      if (!streams) store(grad_w + edge * channels + columns[i], load(node + columns[i]) * arriving);
    }
    if (streams && columns.first == 0) stream_product(grad_w + edge * channels, node, from, channels);
  }
  grad_x += row * channels + columns.first;
#pragma GCC unroll 16
  for (int i = 0; i < C::count; ++i) store(grad_x + columns[i], total[i]);
}

template <class T>
void cfconv_backward(const Plan& plan, const T* grad, const T* x, const T* w, const int64_t* dst, T* grad_x, T* grad_w,
                     int64_t channels) {
  const int64_t ahead = edges_ahead(channels);
  const bool streams = sizeof(T) >= 4 && plan.num_edges * channels * int64_t(sizeof(T)) > STREAM_BYTES;
  for_each_tile(plan, channels, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (!is_narrow<T>(channels)) {
        for_each_block<T>(channels, [=](auto columns) {
          backward_block(plan, row, grad, x, w, dst, grad_x, grad_w, channels, ahead, streams, columns);
        });
        continue;
      }
      for (int64_t c = 0; c < channels; ++c) {
        typename Sum<T>::type total = 0;
        for (int64_t p = plan.rowptr[row]; p < plan.rowptr[row + 1]; ++p) {
          const int64_t edge = plan.perm ? plan.perm[p] : p;
          const auto arriving = widen(grad[dst[edge] * channels + c]);
          total += arriving * widen(w[edge * channels + c]);
          grad_w[edge * channels + c] = Narrow<T>::of(widen(x[row * channels + c]) * arriving);
        }
        grad_x[row * channels + c] = Narrow<T>::of(total);
      }
    }
    if (streams) finish_stream();
  });
}

// Element types -----------------------------------------------------------------------------------------------------

template <class T>
struct Type {
  using type = T;
};

// Calls body with the element type that Python gives this number (popgeo/ops/kernel_arguments.py).
template <class Body>
inline void for_float(int64_t dtype, Body body) {
  switch (dtype) {
    case 0: return body(Type<float>());
    case 1: return body(Type<double>());
    case 2: return body(Type<bfloat16>());
    case 3: return body(Type<float16>());
  }
}

template <class Int32, class Int64, class Body>
inline void for_number(int64_t dtype, Body body) {
  switch (dtype) {
    case 4: return body(Type<Int32>());
    case 5: return body(Type<Int64>());
    default: return for_float(dtype, body);
  }
}

template <class T>
inline const T* in(const void* data) {
  return static_cast<const T*>(data);
}

template <class T>
inline T* to(void* data) {
  return static_cast<T*>(data);
}

const Kernels kernels = {
    [](int64_t dtype, const int64_t* index, int64_t num_edges, int64_t num_rows, const void* src, void* out,
       int64_t channels) {
      const auto add_all = [=](auto type) {
        using T = typename decltype(type)::type;
        add(index, num_edges, num_rows, in<T>(src), to<T>(out), channels);
      };
      switch (dtype) {
        case 0: return add_all(Type<float>());
        case 1: return add_all(Type<double>());
        case 4: return add_all(Type<uint32_t>());
        case 5: return add_all(Type<uint64_t>());
      }
    },
    [](int64_t dtype, const Plan& plan, const void* src, void* out, int64_t channels) {
      // Unsigned, so that a sum too large for the type wraps, as torch's does.
      for_number<uint32_t, uint64_t>(dtype, [=](auto type) {
        using T = typename decltype(type)::type;
        sum(plan, in<T>(src), to<T>(out), channels);
      });
    },
    [](bool largest, int64_t dtype, const Plan& plan, const void* src, void* out, int64_t* arg, int64_t channels) {
      for_number<int32_t, int64_t>(dtype, [=](auto type) {
        using T = typename decltype(type)::type;
        if (largest)
          extremum<true>(plan, in<T>(src), to<T>(out), arg, channels);
        else
          extremum<false>(plan, in<T>(src), to<T>(out), arg, channels);
      });
    },
    [](int64_t dtype, const Plan& plan, const void* x, const void* w, const int64_t* src, void* out, int64_t channels) {
      for_float(dtype, [=](auto type) {
        using T = typename decltype(type)::type;
        cfconv(plan, in<T>(x), in<T>(w), src, to<T>(out), channels);
      });
    },
    [](int64_t dtype, const Plan& plan, const void* grad, const void* x, const void* w, const int64_t* dst, void* grad_x,
       void* grad_w, int64_t channels) {
      for_float(dtype, [=](auto type) {
        using T = typename decltype(type)::type;
        cfconv_backward(plan, in<T>(grad), in<T>(x), in<T>(w), dst, to<T>(grad_x), to<T>(grad_w), channels);
      });
    },
};

}  // namespace POPGEO_ISA
}  // namespace popgeo
