// Reductions. Sums of floating-point numbers add in the order in which torch adds on one thread with vectors of 32 bytes,
// so that they have torch's bits: sums of 16 or more numbers are summed in turn, up to four times (torch's SumKernel.cpp).
#include "vectorise.h"  // first

#include <cstring>

#include "denormals.h"
#include "plain.h"

namespace popgeo {
namespace POPGEO_ISA {
namespace sums {

enum Code : int64_t { SUM, MEAN, ANY, ALL, LARGEST, SMALLEST, RUNNING_SUM };

constexpr int LEVELS = 4, TOGETHER = 4;   // levels of sums, and sums that are computed at the same time
constexpr int64_t FOR_THREADS = 1 << 18;  // smaller sums run in one thread
constexpr int64_t SHARE = 64;             // results that one thread computes without a break; a multiple of torch's blocks

template <class T>
struct Lanes {
  typedef T type __attribute__((vector_size(32)));
  static constexpr int64_t count = 32 / sizeof(T);
};

template <class A>
inline A load(const char* from) {
  A value;
  memcpy(&value, from, sizeof(A));
  return value;
}

// Computes ROWS sums of `size` numbers or vectors; steps are in bytes.
template <int ROWS, class A>
inline void sums_of(const char* in, int64_t step, int64_t row_step, int64_t size, A* sums) {
  int64_t power = 4;
  if (size > 2) {
    const int64_t quarter = (64 - __builtin_clzll(uint64_t(size - 1))) / LEVELS;
    power = quarter > power ? quarter : power;
  }
  const int64_t length = int64_t(1) << power;
  A level[LEVELS][ROWS] = {};
  int64_t i = 0;
  while (i + length <= size) {
    for (int64_t j = 0; j < length; ++j, ++i)
#pragma GCC unroll 4
      for (int k = 0; k < ROWS; ++k) level[0][k] += load<A>(in + i * step + k * row_step);
    for (int j = 1; j < LEVELS; ++j) {
#pragma GCC unroll 4
      for (int k = 0; k < ROWS; ++k) {
        level[j][k] += level[j - 1][k];
        level[j - 1][k] = A{};
      }
      if (i & ((length - 1) << (j * power))) break;
    }
  }
  for (; i < size; ++i)
    for (int k = 0; k < ROWS; ++k) level[0][k] += load<A>(in + i * step + k * row_step);
  for (int j = 1; j < LEVELS; ++j)
    for (int k = 0; k < ROWS; ++k) level[0][k] += level[j][k];
  for (int k = 0; k < ROWS; ++k) sums[k] = level[0][k];
}

// Sums one row in four parts.
template <class A>
inline A sum_of(const char* in, int64_t step, int64_t size) {
  A parts[TOGETHER];
  const int64_t quarter = size / TOGETHER;
  sums_of<TOGETHER>(in, step * TOGETHER, step, quarter, parts);
  for (int64_t i = quarter * TOGETHER; i < size; ++i) parts[0] += load<A>(in + i * step);
  for (int k = 1; k < TOGETHER; ++k) parts[0] += parts[k];
  return parts[0];
}

// Sums over `size` elements for the results from `begin` to `end`. Steps are in elements, the first one of the sum.
template <class T>
struct Plane {
  const char* in;
  T* out;
  int64_t size, num_results, step, result_step, out_step;

  template <class A>
  void add(int64_t j, const A* sums, int64_t count) const {
    T numbers[TOGETHER * sizeof(A) / sizeof(T)];
    memcpy(numbers, sums, size_t(count) * sizeof(A));
    for (int64_t k = 0; k < count * int64_t(sizeof(A) / sizeof(T)); ++k) out[(j + k) * out_step] += numbers[k];
  }

  void run(int64_t begin, int64_t end) const {
    using V = typename Lanes<T>::type;
    constexpr int64_t lanes = Lanes<T>::count, bytes = sizeof(T);
    const int64_t along = step * bytes, across = result_step * bytes;
    int64_t j = begin;
    if (step == 1 && size >= lanes) {
      for (; j < end; ++j) {
        const char* row = in + j * across;
        V partial = sum_of<V>(row, sizeof(V), size / lanes);
        T sum = 0;
        for (int64_t k = size / lanes * lanes; k < size; ++k) sum += load<T>(row + k * bytes);
        for (int64_t k = 0; k < lanes; ++k) sum += partial[k];
        add(j, &sum, 1);
      }
      return;
    }
    if (result_step == 1 && num_results >= lanes) {
      for (V sums[TOGETHER]; j + TOGETHER * lanes <= end; j += TOGETHER * lanes) {
        sums_of<TOGETHER>(in + j * bytes, along, sizeof(V), size, sums);
        add(j, sums, TOGETHER);
      }
      for (; j + lanes <= end; j += lanes) {
        const V sum = sum_of<V>(in + j * bytes, along, size);
        add(j, &sum, 1);
      }
    } else if (step >= result_step) {
      for (T sums[TOGETHER]; j + TOGETHER <= end; j += TOGETHER) {
        sums_of<TOGETHER>(in + j * across, along, across, size, sums);
        add(j, sums, TOGETHER);
      }
    }
    for (; j < end; ++j) {
      const T sum = sum_of<T>(in + j * across, along, size);
      add(j, &sum, 1);
    }
  }
};

// Calls `visit` with the place of each plane of the two innermost dimensions.
template <class Visit>
void for_each_plane(const Reduction& reduction, Visit visit) {
  int64_t at[NUM_DIMS] = {}, count = 1;
  for (int d = 2; d < NUM_DIMS; ++d) count *= reduction.sizes[d];
  for (int64_t number = 0; number < count; ++number) {
    int64_t rest = number;
    for (int d = 2; d < NUM_DIMS; ++d) at[d] = rest % reduction.sizes[d], rest /= reduction.sizes[d];
    visit(element(reduction.in, at), element(reduction.out, at));
  }
}

template <class T>
void sum(const Reduction& reduction) {
  const int64_t *sizes = reduction.sizes, *out = reduction.out.steps, *in = reduction.in.steps;
  T* results = reinterpret_cast<T*>(reduction.out.address);
  for (int64_t i = 0; i < reduction.num_results; ++i) results[i] = 0;
  const int sum = out[0] != 0 && out[1] == 0, other = 1 - sum;  // the dimension of the sum
  const uint64_t of_caller = denormals();
  for_each_plane(reduction, [&](const char* from, char* to) {
    if (sizes[other] == 0) return;
    if (out[0] != 0 && out[1] != 0) {
      for (int64_t j = 0; j < sizes[1]; ++j)
        for (int64_t i = 0; i < sizes[0]; ++i)
          reinterpret_cast<T*>(to)[i * out[0] + j * out[1]] += load<T>(from + (i * in[0] + j * in[1]) * int64_t(sizeof(T)));
      return;
    }
    const Plane<T> plane{from, reinterpret_cast<T*>(to), sizes[sum], sizes[other], in[sum], in[other], out[other]};
    const int64_t count = plane.num_results, share = out[other] == 0 ? count : SHARE, shares = (count + share - 1) / share;
    if (shares == 1 || plane.size * count <= FOR_THREADS) return plane.run(0, count);
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
    for (int64_t k = 0; k < shares; ++k) {
      const Denormals same(of_caller);
      plane.run(k * share, (k + 1) * share < count ? (k + 1) * share : count);
    }
  });
  if (reduction.code == MEAN)
    for (int64_t i = 0; i < reduction.num_results; ++i) results[i] /= T(reduction.divisor);
}

// `counts`: whether it matters how often a number is joined.
#define POPGEO_JOIN(Name, how_often_matters, expression)                       \
  struct Name {                                                                \
    static constexpr bool counts = how_often_matters;                          \
    template <class R, class T> static inline R of(R x, T y) { return expression; } \
  }
POPGEO_JOIN(Add, true, R(uint64_t(x) + uint64_t(y)));
POPGEO_JOIN(Any, false, x | (y != T(0)));
POPGEO_JOIN(All, false, x & (y != T(0)));
// NaN wins on either side.
POPGEO_JOIN(Max, false, x > y || x != x ? x : R(y));
POPGEO_JOIN(Min, false, x < y || x != x ? x : R(y));

template <class F, class R, class T>
inline R reduced(R all, const T* numbers, int64_t size, int64_t step) {
  for (int64_t i = 0; i < size; ++i) all = F::of(all, numbers[i * step]);
  return all;
}

// Reduces neighbors in several parts, as vectors need it.
template <class F, class R, class T>
inline R reduced(R all, const T* numbers, int64_t size) {
  constexpr int64_t PARTS = 32;
  int64_t i = 0;
  if (size >= 2 * PARTS) {
    R parts[PARTS];
    for (int64_t k = 0; k < PARTS; ++k) parts[k] = F::counts ? R(0) : all;
    for (; i + PARTS <= size; i += PARTS)
      for (int64_t k = 0; k < PARTS; ++k) parts[k] = F::of(parts[k], numbers[i + k]);
    for (int64_t k = 0; k < PARTS; ++k) all = F::of(all, parts[k]);
  }
  for (; i < size; ++i) all = F::of(all, numbers[i]);
  return all;
}

// Reduces in any order; where `has_first` the results begin as the first element of each.
template <class F, class R, class T>
void reduce(const Reduction& reduction, R first, bool has_first) {
  R* results = reinterpret_cast<R*>(reduction.out.address);
  for (int64_t i = 0; i < reduction.num_results; ++i) results[i] = first;
  const int64_t *out = reduction.out.steps, *in = reduction.in.steps, *sizes = reduction.sizes;
  if (has_first) {
    Reduction copy = reduction;
    for (int d = 0; d < NUM_DIMS; ++d) copy.sizes[d] = out[d] ? sizes[d] : 1;
    for_each_plane(copy, [&](const char* from, char* to) {
      for (int64_t j = 0; j < copy.sizes[1]; ++j)
        for (int64_t i = 0; i < copy.sizes[0]; ++i)
          reinterpret_cast<R*>(to)[i * out[0] + j * out[1]] = R(reinterpret_cast<const T*>(from)[i * in[0] + j * in[1]]);
    });
  }
  const int inner = sizes[1] > 1 && in[0] > in[1], outer = 1 - inner;
  for_each_plane(reduction, [&](const char* from, char* to) {
    for (int64_t j = 0; j < sizes[outer]; ++j) {
      const T* numbers = reinterpret_cast<const T*>(from) + j * in[outer];
      R* result = reinterpret_cast<R*>(to) + j * out[outer];
      if (out[inner] == 0) {
        *result = in[inner] == 1 ? reduced<F>(*result, numbers, sizes[inner])
                                 : reduced<F>(*result, numbers, sizes[inner], in[inner]);
      } else if (out[inner] == 1 && in[inner] == 1) {
        POPGEO_VECTORISE
        for (int64_t i = 0; i < sizes[inner]; ++i) result[i] = F::of(result[i], numbers[i]);
      } else {
        for (int64_t i = 0; i < sizes[inner]; ++i)
          result[i * out[inner]] = F::of(result[i * out[inner]], numbers[i * in[inner]]);
      }
    }
  });
}

// Writes the sum up to each element along the innermost dimension; torch adds floats in double precision.
template <class A, class T>
void running_sum(const Reduction& reduction) {
  const int64_t *sizes = reduction.sizes, *out = reduction.out.steps, *in = reduction.in.steps;
  for_each_plane(reduction, [&](const char* from, char* to) {
    for (int64_t j = 0; j < sizes[1]; ++j) {
      A total = 0;
      for (int64_t i = 0; i < sizes[0]; ++i) {
        total += A(reinterpret_cast<const T*>(from)[j * in[1] + i * in[0]]);
        reinterpret_cast<T*>(to)[j * out[1] + i * out[0]] = T(total);
      }
    }
  });
}

template <class T>
int64_t run(const Reduction& reduction) {
  switch (reduction.code) {
    case ANY: return reduce<Any, uint8_t, T>(reduction, 0, false), 0;
    case ALL: return reduce<All, uint8_t, T>(reduction, 1, false), 0;
    case LARGEST: return reduce<Max, T, T>(reduction, T(0), true), 0;
    case SMALLEST: return reduce<Min, T, T>(reduction, T(0), true), 0;
    default: return 1;
  }
}

template <class T>
int64_t run_floats(const Reduction& reduction) {
  if (reduction.code == SUM || reduction.code == MEAN) return sum<T>(reduction), 0;
  if (reduction.code == RUNNING_SUM) return running_sum<double, T>(reduction), 0;
  return run<T>(reduction);
}

template <class T>
int64_t run_integers(const Reduction& reduction) {
  if (reduction.code == SUM) return reduce<Add, int64_t, T>(reduction, 0, false), 0;
  if (reduction.code == RUNNING_SUM && sizeof(T) == 8) return running_sum<uint64_t, T>(reduction), 0;
  return run<T>(reduction);
}

}  // namespace sums

// Returns 1 without a result if an address is not aligned or if there is no such reduction.
int64_t run_reduction(const Reduction& reduction) {
  if (!is_aligned(reduction.in) || !is_aligned(reduction.out)) return 1;
  switch (reduction.in.type) {
    case FLOAT: return sums::run_floats<float>(reduction);
    case DOUBLE: return sums::run_floats<double>(reduction);
    case INT64: return sums::run_integers<int64_t>(reduction);
    case INT32: return sums::run_integers<int32_t>(reduction);
    default: return sums::run_integers<uint8_t>(reduction);
  }
}

}  // namespace POPGEO_ISA
}  // namespace popgeo
