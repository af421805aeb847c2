// Exponentials and activations, a vector at a time, and their slopes. Every step is a single rounding, so that all
// instruction sets give the same bits.
#pragma once

#include "products.h"

#ifdef POPGEO_HAS_FMA
namespace popgeo {
namespace POPGEO_ISA {

constexpr float LEAST_EXPONENT = -60.0f;  // as popgeo/ops/exp_or_zero.py

// e^x for x <= 0, relative error below 2e-7; 0 below -60, so that neither it nor a gradient times it is denormal.
inline floats exp_of_negative(floats x) {
  // Adding 1.5 * 2^23 rounds to the nearest integer, which then stands in the low bits.
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
  // 2^n: the magic number's own bits fall off at the top.
  const floats scale = bit_cast<floats>((bit_cast<words>(shifted) << 23) + 0x3f800000u);
  return x <= LEAST_EXPONENT ? floats{} : p * scale;
}

// ln((1 + t) / 2) = 2 artanh((t - 1) / (t + 3)) for 0 <= t <= 1: exactly 0 at 1.
inline floats log_of_mean_with_one(floats t) {
  const floats s = (t - 1.0f) / (t + 3.0f);
  const floats q = s * s;  // at most 1/9
  const floats q2 = q * q;
  const floats high = fma(fma(q, splat(1.0f / 15), splat(1.0f / 13)), q2, fma(q, splat(1.0f / 11), splat(1.0f / 9)));
  const floats low = fma(fma(q, splat(1.0f / 7), splat(1.0f / 5)), q2, fma(q, splat(1.0f / 3), splat(1.0f)));
  return 2.0f * s * fma(high, q2 * q2, low);
}

struct Activated {
  floats value, slope;
};

template <int64_t ACTIVATION>
inline Activated activate(floats x) {
  if (ACTIVATION == RELU) return {x < 0.0f ? floats{} : x, x > 0.0f ? splat(1.0f) : floats{}};
  const floats magnitude = x < 0.0f ? -x : x;
  const floats t = exp_of_negative(ACTIVATION == TANH ? -2.0f * magnitude : -magnitude);
  const floats whole = 1.0f / (1.0f + t);
  if (ACTIVATION == TANH) {
    // Near 0 the quotient would lose its last bits: a series of odd powers instead.
    const floats q = x * x;
    floats series = fma(q, splat(-5.70498872745e-3f), splat(2.06390887954e-2f));
    series = fma(series, q, splat(-5.37397155531e-2f));
    series = fma(series, q, splat(1.33314422036e-1f));
    series = fma(series, q, splat(-3.33332819422e-1f));
    const floats large = (1.0f - t) * whole;
    const floats value = magnitude < 0.625f ? fma(x * q, series, x) : (x < 0.0f ? -large : large);
    return {value, fma(-value, value, splat(1.0f))};
  }
  const floats sigmoid = x < 0.0f ? t * whole : whole;
  if (ACTIVATION == SIGMOID) return {sigmoid, sigmoid * (1.0f - sigmoid)};
  if (ACTIVATION == SILU) return {x * sigmoid, sigmoid * fma(x, 1.0f - sigmoid, splat(1.0f))};
  const floats shifted = (x > 0.0f ? x : floats{}) + log_of_mean_with_one(t);
  return {ACTIVATION == SOFTPLUS ? shifted + 0.693147180559945f : shifted, sigmoid};
}

// values[i] becomes the activation of each; `slopes`, where it is asked for, its derivative there.
template <int64_t ACTIVATION>
inline void activate_rows(float* values, float* slopes, int64_t count) {
  for (int64_t i = 0; i < count; i += LANES) {
    const Activated made = activate<ACTIVATION>(load(values + i));
    store(values + i, made.value);
    if (slopes) store(slopes + i, made.slope);
  }
}

inline void activate_rows(int64_t activation, float* values, float* slopes, int64_t count) {
  switch (activation) {
    case SHIFTED_SOFTPLUS: return activate_rows<SHIFTED_SOFTPLUS>(values, slopes, count);
    case SOFTPLUS: return activate_rows<SOFTPLUS>(values, slopes, count);
    case SILU: return activate_rows<SILU>(values, slopes, count);
    case RELU: return activate_rows<RELU>(values, slopes, count);
    case TANH: return activate_rows<TANH>(values, slopes, count);
    case SIGMOID: return activate_rows<SIGMOID>(values, slopes, count);
  }
}

}  // namespace POPGEO_ISA
}  // namespace popgeo
#endif
