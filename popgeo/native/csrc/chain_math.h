// The function of one element for each instruction of a chain: float in, float out, no branches, so that loops vectorize.
//
// Sums of products are written as fused multiply-adds, and the compiler contracts nothing else, so that every processor
// gives the same bits. Errors are below two units in the last place; NaN, infinities and denormals are as in torch.
#pragma once

#include <cstdint>
#include <cstring>

#ifndef POPGEO_ISA
#define POPGEO_ISA baseline
#endif

namespace popgeo {
namespace POPGEO_ISA {
namespace chain {

#define POPGEO_INLINE inline __attribute__((always_inline))

POPGEO_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
POPGEO_INLINE double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }

template <class To, class From>
POPGEO_INLINE To bits_as(From from) {
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

// e^r - 1 - r for |r| <= ln(2) / 2, by the polynomial of Cephes.
POPGEO_INLINE float exp_beyond_line(float r) {
  float p = 1.9875691500e-4f;
  p = fma(p, r, 1.3981999507e-3f);
  p = fma(p, r, 8.3334519073e-3f);
  p = fma(p, r, 4.1665795894e-2f);
  p = fma(p, r, 1.6666665459e-1f);
  p = fma(p, r, 5.0000001201e-1f);
  return p * (r * r);
}

constexpr float ROUND = 12582912.0f;  // adding 1.5 * 2^23 rounds to the nearest integer, which then stands in the low bits

POPGEO_INLINE float exp(float x) {
  float bounded = x < -104.0f ? -104.0f : x;  // e^-104 rounds to 0, e^89 to infinity
  bounded = bounded > 89.0f ? 89.0f : bounded;
  const float shifted = fma(bounded, 1.44269504088896341f, ROUND);
  const float n = shifted - ROUND;
  const float r = fma(n, 2.12194440e-4f, fma(n, -0.693359375f, bounded));  // ln 2 in two parts
  const float p = exp_beyond_line(r) + r + 1.0f;
  // 2^n in two normal factors, so that a denormal product is rounded once.
  const int32_t whole = bits_as<int32_t>(shifted) - bits_as<int32_t>(ROUND);
  const int32_t half = whole >> 1;
  return p * bits_as<float>(uint32_t(half + 127) << 23) * bits_as<float>(uint32_t(whole - half + 127) << 23);
}

POPGEO_INLINE float expm1(float x) {
  const float small = exp_beyond_line(x) + x, large = exp(x) - 1.0f;
  return x < 0.34f && x > -0.34f ? small : large;
}

constexpr float INFINITE = __builtin_inff(), NOT_A_NUMBER = __builtin_nanf("");

POPGEO_INLINE float log(float x) {
  const bool tiny = x < 1.17549435e-38f;
  const float scaled = tiny ? x * 8388608.0f : x;
  // The mantissa is taken between sqrt(1/2) and sqrt(2).
  const int32_t bits = int32_t(bits_as<uint32_t>(scaled) - 0x3f3504f3u);
  const float e = float((bits >> 23) - (tiny ? 23 : 0));
  const float f = bits_as<float>((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
  float p = 7.0376836292e-2f;
  p = fma(p, f, -1.1514610310e-1f);
  p = fma(p, f, 1.1676998740e-1f);
  p = fma(p, f, -1.2420140846e-1f);
  p = fma(p, f, 1.4249322787e-1f);
  p = fma(p, f, -1.6668057665e-1f);
  p = fma(p, f, 2.0000714765e-1f);
  p = fma(p, f, -2.4999993993e-1f);
  p = fma(p, f, 3.3333331174e-1f);
  const float z = f * f;
  float y = fma(e, -2.12194440e-4f, p * f * z);
  y = fma(z, -0.5f, y);
  float result = fma(e, 0.693359375f, f + y);
  result = x == INFINITE ? x : result;
  result = x == 0.0f ? -INFINITE : result;
  return x >= 0.0f ? result : NOT_A_NUMBER;
}

POPGEO_INLINE float log1p(float x) {
  const float u = 1.0f + x;
  // The factor corrects the rounding error of u.
  const float result = log(u) * (x / (u - 1.0f));
  return u == 1.0f || x == INFINITE ? x : result;
}

POPGEO_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }
POPGEO_INLINE float absolute(float x) { return __builtin_fabsf(x); }
POPGEO_INLINE float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

POPGEO_INLINE float tanh(float x) {
  const float size = absolute(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = fma(p, z, 2.06390887954e-2f);
  p = fma(p, z, -5.37397155531e-2f);
  p = fma(p, z, 1.33314422036e-1f);
  p = fma(p, z, -3.33332819422e-1f);
  const float small = fma(p * z, x, x);
  const float large = 1.0f - 2.0f / (exp(2.0f * size) + 1.0f);
  return size < 0.625f ? small : x < 0.0f ? -large : large;
}

// sin or cos of x by quarters of a turn, in double precision, which is right as long as x has any digits left of its phase.
constexpr double ROUND_DOUBLE = 6755399441055744.0;
constexpr float LARGEST_ANGLE = 1e15f;

POPGEO_INLINE float sine(float angle, int64_t quarters) {
  const double x = angle;
  const double shifted = fma(x, 0.63661977236758134308, ROUND_DOUBLE);
  const double n = shifted - ROUND_DOUBLE;
  const double r = fma(n, -6.12323399573676603587e-17, fma(n, -1.57079632679489655800, x));
  const double z = r * r;
  const double odd = fma(fma(fma(fma(1.0 / 362880, z, -1.0 / 5040), z, 1.0 / 120), z, -1.0 / 6), z * r, r);
  double even = fma(fma(1.0 / 40320, z, -1.0 / 720), z, 1.0 / 24);
  even = fma(fma(-1.0 / 3628800 * z, z * z, even), z * z, fma(z, -0.5, 1.0));
  const int64_t quadrant = bits_as<int64_t>(shifted) + quarters;
  const double value = quadrant & 1 ? even : odd;
  return float(quadrant & 2 ? -value : value);
}

// Below this exponent the shifted softplus and its derivative have their limits, because the difference is denormal.
constexpr float SMALLEST_EXPONENT = -87.0f;

POPGEO_INLINE float exp_of_negative(float x) {
  const float bounded = x < SMALLEST_EXPONENT ? SMALLEST_EXPONENT : x;
  const float shifted = fma(bounded, 1.44269504088896341f, ROUND);
  const float n = shifted - ROUND;
  const float r = fma(n, 2.12194440e-4f, fma(n, -0.693359375f, bounded));
  // The shift removes the bits of ROUND.
  const float scale = bits_as<float>(int32_t((bits_as<uint32_t>(shifted) << 23) + 0x3f800000u));
  return x < SMALLEST_EXPONENT ? 0.0f : (exp_beyond_line(r) + r + 1.0f) * scale;
}

// ln((1 + e^x) / 2), exactly 0 at 0.
POPGEO_INLINE float shifted_softplus(float x) {
  const float t = exp_of_negative(-absolute(x));
  const float s = (t - 1.0f) / (t + 3.0f), q = s * s;  // 2 artanh(s), q at most 1/9
  // Summed in pairs, because short chains of operations let the processor overlap elements.
  const float q2 = q * q;
  const float high = fma(fma(q, 1.0f / 15, 1.0f / 13), q2, fma(q, 1.0f / 11, 1.0f / 9));
  const float low = fma(fma(q, 1.0f / 7, 1.0f / 5), q2, fma(q, 1.0f / 3, 1.0f));
  const float p = fma(high, q2 * q2, low);
  return (x > 0.0f ? x : x <= 0.0f ? 0.0f : x) + 2.0f * s * p;
}

POPGEO_INLINE float shifted_softplus_backward(float grad, float x) {
  const float t = exp_of_negative(-absolute(x));
  return grad * (x < 0.0f ? t : 1.0f) / (1.0f + t);
}

POPGEO_INLINE float silu_backward(float grad, float x) {
  const float s = sigmoid(x);
  return grad * s * fma(x, 1.0f - s, 1.0f);
}

// As in torch, the base is the nearer end, so that a weight of 1 gives exactly the end.
POPGEO_INLINE float lerp(float start, float end, float weight) {
  const bool near = absolute(weight) < 0.5f;
  return fma(near ? weight : weight - 1.0f, end - start, near ? start : end);
}

}  // namespace chain
}  // namespace POPGEO_ISA
}  // namespace popgeo
