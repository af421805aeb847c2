// The elementwise tail of SchNet's filter network: shifted softplus, forward and backward, in one pass each.
// The file is compiled once per instruction set (see setup.py); run_filter.cpp picks among them.
#include "activations.h"
#include "denormals.h"

namespace popgeo {
namespace POPGEO_ISA {

constexpr int64_t PART = 1 << 16;  // of the elements, for one thread

// to[i] = of(a[i], b[i]), a vector at a time; the last ones in a vector that is filled up with zeros.
template <class Of>
inline void map_part(const float* a, const float* b, float* to, int64_t size, Of of) {
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES) store(to + i, of(load(a + i), load(b + i)));
  float last[3][LANES] = {};
  memcpy(last[0], a + i, sizeof(float) * size_t(size - i));
  memcpy(last[1], b + i, sizeof(float) * size_t(size - i));
  store(last[2], of(load(last[0]), load(last[1])));
  memcpy(to + i, last[2], sizeof(float) * size_t(size - i));
}

template <class Of>
inline void map(const float* a, const float* b, float* to, int64_t size, Of of) {
  const uint64_t of_caller = denormals();
#ifdef _OPENMP
#pragma omp parallel if (size >= 2 * PART)
#endif
  {
    const Denormals same(of_caller);
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
    for (int64_t start = 0; start < size; start += PART)
      map_part(a + start, b + start, to + start, size - start < PART ? size - start : PART, of);
  }
}

void shifted_softplus(const float* x, float* y, int64_t size) {
  map(x, x, y, size, [](floats value, floats) { return activate<SHIFTED_SOFTPLUS>(value).value; });
}

void shifted_softplus_backward(const float* grad, const float* x, float* out, int64_t size) {
  map(grad, x, out, size, [](floats above, floats value) { return above * activate<SHIFTED_SOFTPLUS>(value).slope; });
}

}  // namespace POPGEO_ISA
}  // namespace popgeo
