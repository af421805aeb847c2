// SchNet's convolution and its gradients: rows of neighbors times filters, summed at each receiver. Included by
// kernels.cpp, which is compiled once per instruction set.
#pragma once

#include "walk_rows.h"

namespace popgeo {
namespace POPGEO_ISA {

constexpr int64_t STREAM_BYTES = 3 << 20;  // larger results, written in any order, bypass the caches

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
    if (!is_narrow<T>(channels))
      return for_each_row<T>(begin, end, channels, [=](int64_t row, auto columns) {
        cfconv_block(plan, row, x, w, src, out, channels, ahead, fetches, columns);
      });
    for (int64_t row = begin; row < end; ++row)
      for (int64_t c = 0; c < channels; ++c) {
        typename Sum<T>::type total = 0;
        for (int64_t p = plan.rowptr[row]; p < plan.rowptr[row + 1]; ++p) {
          const int64_t edge = plan.perm ? plan.perm[p] : p;
          total += widen(x[src[edge] * channels + c]) * widen(w[edge * channels + c]);
        }
        out[row * channels + c] = Narrow<T>::of(total);
      }
  });
}

// Writes a row past the caches: whole lines of memory as vectors, both ends number by number.
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
    if (!is_narrow<T>(channels)) {
      for_each_row<T>(begin, end, channels, [=](int64_t row, auto columns) {
        backward_block(plan, row, grad, x, w, dst, grad_x, grad_w, channels, ahead, streams, columns);
      });
      if (streams) finish_stream();
      return;
    }
    for (int64_t row = begin; row < end; ++row)
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
  });
}

}  // namespace POPGEO_ISA
}  // namespace popgeo
