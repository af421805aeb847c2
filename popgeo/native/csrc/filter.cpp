// Shifted softplus, forward and backward, in one pass each. Every step is a single rounding, so that all instruction sets
// with fused multiply-adds give the same bits.
// The file is compiled once per instruction set (see setup.py); run_filter.cpp chooses.
#include "denormals.h"
#include "vectors.h"

namespace popgeo {
namespace POPGEO_ISA {

constexpr float LEAST_EXPONENT = -60.0f;  // as popgeo/ops/exp_or_zero.py

// e^x for x <= 0, relative error below 2e-7; 0 below -60, so that neither it nor a gradient times it is denormal.
inline floats exp_of_negative(floats x) {
  // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
  const floats round = splat(12582912.0f);
  const floats clamped = x < LEAST_EXPONENT ? splat(LEAST_EXPONENT) : x;
  const floats shifted = fma(clamped, splat(1.44269504088896341f), round);
  const floats n = shifted - round;
  // ln 2 in two parts, so that the remainder keeps its last bits.
  const floats r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), clamped));
  // Both polynomials are summed in pairs (Estrin): short chains let the processor overlap iterations.
  const floats r2 = r * r;
  const floats high =
      fma(fma(r, splat(1.0f / 5040), splat(1.0f / 720)), r2, fma(r, splat(1.0f / 120), splat(1.0f / 24)));
  const floats low = fma(fma(r, splat(1.0f / 6), splat(0.5f)), r2, r + 1.0f);
  const floats p = fma(high, r2 * r2, low);
  // 2^n: the shift removes the bits of 1.5 * 2^23.
  const floats scale = bit_cast<floats>((bit_cast<words>(shifted) << 23) + 0x3f800000u);
  return x <= LEAST_EXPONENT ? floats{} : p * scale;
}

// ln((1 + t) / 2) for 0 <= t <= 1, relative error below 2e-7; exactly 0 at 1. By the polynomial of ln(1 + u / 2) / u,
// because a division would take as long as the whole polynomial.
inline floats log_of_mean_with_one(floats t) {
  const floats u = t - 1.0f, u2 = u * u, u4 = u2 * u2;
  const floats a = fma(u, splat(-0.125000298f), splat(0.5f));
  const floats b = fma(u, splat(-0.0157472994f), splat(0.0416568965f));
  const floats c = fma(u, splat(-0.00532416347f), splat(0.00548252417f));
  const floats d = fma(u, splat(-0.00765574444f), splat(-0.00461006816f));
  const floats e = fma(u, splat(-0.00169298041f), splat(-0.00480266009f));
  return u * fma(u4, fma(u4, e, fma(u2, d, c)), fma(u2, b, a));
}

// 1 / y for 1 <= y <= 2: a parabola with an error of 1 %, then two Newton steps.
inline floats reciprocal(floats y) {
  const floats one = splat(1.0f);
  floats r = fma(fma(y, splat(0.323232323f), splat(-1.4545455f)), y, splat(2.12121201f));
  r = fma(r, fma(-y, r, one), r);
  return fma(r, fma(-y, r, one), r);
}

struct Activated {
  floats value, slope;
};

inline Activated activate(floats x) {
  const floats magnitude = x < 0.0f ? -x : x;
  const floats t = exp_of_negative(-magnitude);
  const floats whole = reciprocal(1.0f + t);
  return {(x > 0.0f ? x : floats{}) + log_of_mean_with_one(t), x < 0.0f ? t * whole : whole};
}

constexpr int64_t PART = 1 << 16;  // elements per part; one thread takes a part

// Computes to[i] = of(a[i], b[i]) vector by vector; zeros fill the last vector.
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
  map(x, x, y, size, [](floats value, floats) { return activate(value).value; });
}

void shifted_softplus_backward(const float* grad, const float* x, float* out, int64_t size) {
  map(grad, x, out, size, [](floats above, floats value) { return above * activate(value).slope; });
}

}  // namespace POPGEO_ISA
}  // namespace popgeo
