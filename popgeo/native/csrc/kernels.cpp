// Sums over the edges that arrive at each row: scatter-add, its extremes, and SchNet's convolution with its gradients.
//
// One thread sums narrow rows edge by edge. Otherwise rows are divided over tiles. A tile walks its rows in order, and the
// edges of each row in the order of the index; it keeps the row in registers and writes it once. So there are no atomics
// and no zero fill, and any number of tiles and threads gives the same bits. The file is compiled once per instruction set
// (see setup.py); gather_scatter.cpp chooses. No function allocates memory or throws.
#include <cstring>
#include <limits>
#include <type_traits>

#include "convolution.h"
#include "kernels.h"
#include "walk_rows.h"

namespace popgeo {
namespace POPGEO_ISA {

constexpr int64_t CLEARED_BYTES = 12 << 20;  // larger results with mostly empty rows bypass the caches

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
    if (!is_narrow<T>(channels))
      return for_each_row<T>(begin, end, channels, [=](int64_t row, auto columns) {
        sum_block(plan, row, src, out, channels, ahead, columns);
      });
    for (int64_t row = begin; row < end; ++row)
      for (int64_t c = 0; c < channels; ++c) {
        typename Sum<T>::type total = 0;
        for (int64_t p = plan.rowptr[row]; p < plan.rowptr[row + 1]; ++p)
          total += widen(src[(plan.perm ? plan.perm[p] : p) * channels + c]);
        out[row * channels + c] = Narrow<T>::of(total);
      }
  });
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

constexpr int64_t CACHED_BYTES = 1 << 19;  // a single channel of fewer bytes needs no prefetch

// Sums or products in one thread, in the order of the edges: each row receives its edges in the same order as above.
template <bool PRODUCT, class T>
void add(const int64_t* index, int64_t num_edges, int64_t num_rows, const T* src, T* out, int64_t channels) {
  constexpr int64_t lanes = Vector<T>::lanes;
  const int64_t ahead = edges_ahead(channels);
  if (num_rows == 0 || channels == 0) return;
  if (PRODUCT)
    for (int64_t i = 0; i < num_rows * channels; ++i) out[i] = T(1);
  else
    clear(out, num_rows * channels);
  if (channels == 1 && num_rows * int64_t(sizeof(T)) < CACHED_BYTES) {
    for (int64_t e = 0; e < num_edges; ++e) {
      T& to = out[index[e]];
      to = PRODUCT ? to * src[e] : to + src[e];
    }
    return;
  }
  for (int64_t e = 0; e < num_edges; ++e) {
    const T* from = src + e * channels;
    T* to = out + index[e] * channels;
    const T* next = out + index[e + ahead < num_edges ? e + ahead : e] * channels;
    for (int64_t c = 0; c < channels; c += 64 / int64_t(sizeof(T))) __builtin_prefetch(next + c, 1, 3);
    int64_t c = 0;
    for (; c + lanes <= channels; c += lanes)
      store(to + c, PRODUCT ? load(to + c) * load(from + c) : load(to + c) + load(from + c));
    for (; c < channels; ++c) to[c] = PRODUCT ? to[c] * from[c] : to[c] + from[c];
  }
}

// Extremes ----------------------------------------------------------------------------------------------------------

// Checks whether a value replaces the best so far: the first of equal values stays, and a NaN replaces nothing.
template <bool LARGEST, class V>
inline bool wins(V value, V best, bool is_first) {
  const bool is_better = LARGEST ? value > best : value < best;
  return is_better | (is_first & (value == value));
}

constexpr int64_t WIDTH = 32;  // channels that stay in registers

// Finds the extremes of `width` channels of a row and their edges; 0 and num_edges for a row without numbers.
template <bool LARGEST, class T, class Width>
inline void extremum_of_row(const Plan& plan, int64_t row, const T* src, T* out, int64_t* arg, Width width, int64_t channels) {
  using V = typename Sum<T>::type;
  using Limits = std::numeric_limits<V>;
  constexpr V infinity = Limits::has_infinity ? Limits::infinity() : Limits::max();
  constexpr V worst = !LARGEST ? infinity : Limits::has_infinity ? -infinity : Limits::min();
  const int32_t none = int32_t(plan.num_edges);
  const int64_t ahead = plan.perm ? edges_ahead(channels) : 0, last_edge = plan.num_edges - 1;
  const int64_t begin = plan.rowptr[row], end = plan.rowptr[row + 1];
  const auto edge_at = [&](int64_t p) { return plan.perm ? plan.perm[p] : int32_t(p); };
  V best[WIDTH];
  int32_t from[WIDTH];
  for (int64_t c = 0; c < width; ++c) best[c] = worst, from[c] = none;
  for (int64_t p = begin; p < end; ++p) {
    const int32_t edge = edge_at(p);
    const T* values = src + int64_t(edge) * channels;
    if (ahead) {
      const T* later = src + int64_t(plan.perm[p + ahead < last_edge ? p + ahead : last_edge]) * channels;
      for (int64_t c = 0; c < width; c += 64 / int64_t(sizeof(T))) __builtin_prefetch(later + c);
    }
    for (int64_t c = 0; c < width; ++c) {
      const V value = widen(values[c]);
      const bool better = LARGEST ? value > best[c] : value < best[c];
      from[c] = better ? edge : from[c];
      best[c] = better ? value : best[c];
    }
  }
  for (int64_t c = 0; c < width; ++c) {
    for (int64_t p = begin; p < end && from[c] == none; ++p)  // without a better value than the worst
      if (widen(src[int64_t(edge_at(p)) * channels + c]) == worst) from[c] = edge_at(p);
    out[row * channels + c] = Narrow<T>::of(from[c] == none ? V(0) : best[c]);
    arg[row * channels + c] = from[c];
  }
}

template <bool LARGEST, class T>
void extremum(const Plan& plan, const T* src, T* out, int64_t* arg, int64_t channels) {
  for_each_tile(plan, channels, [=](int64_t begin, int64_t end) {
    if (channels == 1) {  // a known width stays in registers
      constexpr std::integral_constant<int64_t, 1> one;
      for (int64_t row = begin; row < end; ++row) extremum_of_row<LARGEST>(plan, row, src, out, arg, one, one);
      return;
    }
    for (int64_t row = begin; row < end; ++row)
      for (int64_t first = 0; first < channels; first += WIDTH) {
        const int64_t width = channels - first < WIDTH ? channels - first : WIDTH;
        extremum_of_row<LARGEST>(plan, row, src + first, out + first, arg + first, width, channels);
      }
  });
}

// Finds extremes in one thread in the order of the edges, so that `src` is read once from beginning to end.
// `from` is memory for num_rows * channels numbers.
template <bool LARGEST, class T>
void extremum_by_edge(const int64_t* index, int64_t num_edges, int64_t num_rows, const T* src, T* out, int32_t* from,
                      int64_t channels) {
  const int32_t none = int32_t(num_edges);
  const int64_t ahead = edges_ahead(channels);
  for (int64_t i = 0; i < num_rows * channels; ++i) out[i] = 0, from[i] = none;
  if (channels == 1 && num_rows * int64_t(sizeof(T)) < CACHED_BYTES) {
    for (int64_t e = 0; e < num_edges; ++e) {
      const int64_t row = index[e];
      if (wins<LARGEST>(src[e], out[row], from[row] == none)) out[row] = src[e], from[row] = int32_t(e);
    }
    return;
  }
  for (int64_t e = 0; e < num_edges; ++e) {
    const T* __restrict__ values = src + e * channels;
    T* __restrict__ best = out + index[e] * channels;
    int32_t* __restrict__ edge = from + index[e] * channels;
    const int64_t next = index[e + ahead < num_edges ? e + ahead : e] * channels;
    for (int64_t c = 0; c < channels; c += 64 / int64_t(sizeof(T))) __builtin_prefetch(out + next + c, 1, 3);
    for (int64_t c = 0; c < channels; c += 64 / int64_t(sizeof(int32_t))) __builtin_prefetch(from + next + c, 1, 3);
    for (int64_t c = 0; c < channels; ++c) {
      const bool better = wins<LARGEST>(values[c], best[c], edge[c] == none);
      best[c] = better ? values[c] : best[c];
      edge[c] = better ? int32_t(e) : edge[c];
    }
  }
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
    [](bool product, int64_t dtype, const int64_t* index, int64_t num_edges, int64_t num_rows, const void* src, void* out,
       int64_t channels) {
      const auto add_all = [=](auto type) {
        using T = typename decltype(type)::type;
        (product ? add<true, T> : add<false, T>)(index, num_edges, num_rows, in<T>(src), to<T>(out), channels);
      };
      switch (dtype) {
        case 0: return add_all(Type<float>());
        case 1: return add_all(Type<double>());
        case 4: return add_all(Type<uint32_t>());
        case 5: return add_all(Type<uint64_t>());
      }
    },
    [](int64_t dtype, const Plan& plan, const void* src, void* out, int64_t channels) {
      // Unsigned, so that a sum that is too large for the type wraps, as in torch.
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
    [](bool largest, int64_t dtype, const int64_t* index, int64_t num_edges, int64_t num_rows, const void* src, void* out,
       int32_t* from, int64_t channels) {
      for_number<int32_t, int64_t>(dtype, [=](auto type) {
        using T = typename decltype(type)::type;
        if constexpr (sizeof(T) >= 4) {  // halves are compared row by row
          const auto find = largest ? extremum_by_edge<true, T> : extremum_by_edge<false, T>;
          find(index, num_edges, num_rows, in<T>(src), to<T>(out), from, channels);
        }
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
