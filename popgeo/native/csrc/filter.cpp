// Shifted softplus of floats and doubles, forward and backward, in one pass each. Every step is a single rounding, so that
// all instruction sets with fused multiply-adds give the same bits.
// The file is compiled once per instruction set (see setup.py); run_filter.cpp chooses.
#include "denormals.h"
#include "vectors.h"

namespace popgeo {
namespace POPGEO_ISA {

// As popgeo/ops/exp_or_zero.py.
constexpr float LEAST_EXPONENT = -60.0f;
constexpr double LEAST_EXPONENT_OF_DOUBLE = -600.0;

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

inline floats activated(floats x) {
  return (x > 0.0f ? x : floats{}) + log_of_mean_with_one(exp_of_negative(x < 0.0f ? x : -x));
}

inline floats slope(floats x) {
  const floats t = exp_of_negative(x < 0.0f ? x : -x), whole = reciprocal(1.0f + t);
  return x < 0.0f ? t * whole : whole;
}

// e^x = scale * (1 + p), where scale is a power of 2.
struct Exponential {
  doubles scale, p;
};

// As above for doubles: x <= 0, and 0 at and below -600.
inline Exponential exp_of_negative(doubles x) {
  const doubles round = splat(6755399441055744.0);  // 1.5 * 2^52
  const doubles clamped = x < LEAST_EXPONENT_OF_DOUBLE ? splat(LEAST_EXPONENT_OF_DOUBLE) : x;
  const doubles shifted = fma(clamped, splat(1.44269504088896340736), round);
  const doubles n = shifted - round;
  const doubles r = fma(n, splat(-1.90821492927058770002e-10), fma(n, splat(-6.93147180369123816490e-1), clamped));
  const doubles r2 = r * r, r4 = r2 * r2;
  const doubles a = fma(fma(r, splat(1.0 / 120), splat(1.0 / 24)), r2, fma(r, splat(1.0 / 6), splat(0.5)));
  const doubles b =
      fma(fma(r, splat(1.0 / 362880), splat(1.0 / 40320)), r2, fma(r, splat(1.0 / 5040), splat(1.0 / 720)));
  const doubles c = fma(r, splat(1.0 / 39916800), splat(1.0 / 3628800));
  const doubles d = fma(r, splat(1.0 / 6227020800), splat(1.0 / 479001600));
  const doubles p = fma(r2, fma(r4, fma(r4, fma(d, r2, c), b), a), r);
  const doubles scale = bit_cast<doubles>((bit_cast<long_words>(shifted) << 52) + 0x3ff0000000000000u);
  return {x <= LEAST_EXPONENT_OF_DOUBLE ? doubles{} : scale, p};
}

// ln(1 + f + rest) for sqrt(1/2) <= 1 + f <= sqrt(2) and a rest below the last bit of f, by the polynomial of fdlibm.
inline doubles log_of_one_plus(doubles f, doubles rest) {
  const doubles s = f / (f + 2.0), half_square = 0.5 * f * f, z = s * s, w = z * z;
  const doubles a = fma(z, splat(3.999999999940941908e-1), splat(6.666666666666735130e-1));
  const doubles b = fma(z, splat(2.222219843214978396e-1), splat(2.857142874366239149e-1));
  const doubles c = fma(z, splat(1.531383769920937332e-1), splat(1.818357216161805012e-1));
  const doubles p = fma(w, fma(w, fma(w, splat(1.479819860511658591e-1), c), b), a);
  return f - (fma(-s, fma(z, p, half_square), half_square) - rest);
}

// max(x, 0) + ln((1 + e^-|x|) / 2) with an error below two units in the last place. Near 0 it takes the logarithm of
// 1 + (e^-|x| - 1) / 2, so that no digits cancel, and beyond that of 1 + e^-|x|.
inline doubles activated(doubles x) {
  const doubles opposite = x < 0.0 ? x : -x;
  const auto [scale, p] = exp_of_negative(opposite);
  const auto is_near = opposite > -0.88137358701954302523;  // ln(1 + sqrt(2))
  const doubles factor = is_near ? 0.5 * scale : scale, summand = is_near ? factor - 0.5 : factor;
  const doubles f = fma(factor, p, summand), rest = fma(factor, p, summand - f);
  // ln 2 in two parts.
  const doubles whole = (x > 0.0 ? x : doubles{}) - (is_near ? doubles{} : splat(6.931471805599452862e-1));
  return whole + log_of_one_plus(f, rest - (is_near ? doubles{} : splat(2.319046813846299558e-17)));
}

// The quotient is corrected for its own rounding error and for those of e^-|x| and 1 + e^-|x|.
inline doubles slope(doubles x) {
  const auto [scale, p] = exp_of_negative(x < 0.0 ? x : -x);
  const doubles t = fma(scale, p, scale), rest = fma(scale, p, scale - t), y = 1.0 + t, r = 1.0 / y;
  const doubles above = x < 0.0 ? t : splat(1.0), rest_above = x < 0.0 ? rest : doubles{}, rough = above * r;
  const doubles remainder = fma(-y, rough, above) + fma(-rough, (t - (y - 1.0)) + rest, rest_above);
  return fma(remainder, r, rough);
}

constexpr int64_t PART = 1 << 16;  // elements per part; one thread takes a part

// Computes to[i] = of(a[i], b[i]) vector by vector; zeros fill the last vector.
template <class T, class Of>
inline void map_part(const T* a, const T* b, T* to, int64_t size, Of of) {
  constexpr int64_t lanes = Vector<T>::lanes;
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes) store(to + i, of(load(a + i), load(b + i)));
  T last[3][lanes] = {};
  memcpy(last[0], a + i, sizeof(T) * size_t(size - i));
  memcpy(last[1], b + i, sizeof(T) * size_t(size - i));
  store(last[2], of(load(last[0]), load(last[1])));
  memcpy(to + i, last[2], sizeof(T) * size_t(size - i));
}

template <class T, class Of>
inline void map(const T* a, const T* b, T* to, int64_t size, Of of) {
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

template <class T>
void shifted_softplus(const T* grad, const T* x, T* out, int64_t size) {
  if (grad)
    map(grad, x, out, size, [](auto above, auto value) { return above * slope(value); });
  else
    map(x, x, out, size, [](auto value, auto) { return activated(value); });
}

template void shifted_softplus(const float*, const float*, float*, int64_t);
template void shifted_softplus(const double*, const double*, double*, int64_t);

}  // namespace POPGEO_ISA
}  // namespace popgeo
