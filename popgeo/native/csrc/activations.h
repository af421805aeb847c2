// Exponentials and activations, a vector at a time, and their slopes. Every step is a single rounding, so that all
// instruction sets with fused multiply-adds give the same bits.
#pragma once

#include "interaction.h"
#include "vectors.h"

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

// ln((1 + t) / 2) for 0 <= t <= 1, relative error below 2e-7; exactly 0 at 1. The polynomial of ln(1 + u / 2) / u, since a
// division takes as long as all of it.
inline floats log_of_mean_with_one(floats t) {
  const floats u = t - 1.0f, u2 = u * u, u4 = u2 * u2;
  const floats a = fma(u, splat(-0.125000298f), splat(0.5f));
  const floats b = fma(u, splat(-0.0157472994f), splat(0.0416568965f));
  const floats c = fma(u, splat(-0.00532416347f), splat(0.00548252417f));
  const floats d = fma(u, splat(-0.00765574444f), splat(-0.00461006816f));
  const floats e = fma(u, splat(-0.00169298041f), splat(-0.00480266009f));
  return u * fma(u4, fma(u4, e, fma(u2, d, c)), fma(u2, b, a));
}

// 1 / y for 1 <= y <= 2: a parabola that is right to 1 %, then two of Newton's steps.
inline floats reciprocal(floats y) {
  const floats one = splat(1.0f);
  floats r = fma(fma(y, splat(0.323232323f), splat(-1.4545455f)), y, splat(2.12121201f));
  r = fma(r, fma(-y, r, one), r);
  return fma(r, fma(-y, r, one), r);
}

struct Activated {
  floats value, slope, bend;  // and its first and second derivative
};

template <int64_t ACTIVATION>
inline Activated activate(floats x) {
  if (ACTIVATION == RELU) return {x < 0.0f ? floats{} : x, x > 0.0f ? splat(1.0f) : floats{}, floats{}};
  const floats magnitude = x < 0.0f ? -x : x;
  const floats t = exp_of_negative(ACTIVATION == TANH ? -2.0f * magnitude : -magnitude);
  const floats whole = reciprocal(1.0f + t);
  if (ACTIVATION == TANH) {
    // Near 0 the quotient would lose its last bits: a series of odd powers instead.
    const floats q = x * x;
    floats series = fma(q, splat(-5.70498872745e-3f), splat(2.06390887954e-2f));
    series = fma(series, q, splat(-5.37397155531e-2f));
    series = fma(series, q, splat(1.33314422036e-1f));
    series = fma(series, q, splat(-3.33332819422e-1f));
    const floats large = (1.0f - t) * whole;
    const floats value = magnitude < 0.625f ? fma(x * q, series, x) : (x < 0.0f ? -large : large);
    const floats slope = fma(-value, value, splat(1.0f));
    return {value, slope, -2.0f * value * slope};
  }
  const floats sigmoid = x < 0.0f ? t * whole : whole;
  const floats spread = sigmoid * (1.0f - sigmoid), skew = fma(sigmoid, splat(-2.0f), splat(1.0f));
  if (ACTIVATION == SIGMOID) return {sigmoid, spread, spread * skew};
  if (ACTIVATION == SILU)
    return {x * sigmoid, sigmoid * fma(x, 1.0f - sigmoid, splat(1.0f)), spread * fma(x, skew, splat(2.0f))};
  const floats shifted = (x > 0.0f ? x : floats{}) + log_of_mean_with_one(t);
  return {ACTIVATION == SOFTPLUS ? shifted + 0.693147180559945f : shifted, sigmoid, spread};
}

// Rows of numbers, so many vectors of each.
struct Rows {
  int64_t count, width, stride;
};

// Each value becomes its activation; `slopes`, where they are asked for, its derivative there. `tangents`, where they are
// given, say how the values change, and become how the activations do; `bends` become how the slopes do.
template <int64_t ACTIVATION>
inline void activate_rows(float* values, float* slopes, float* tangents, float* bends, Rows rows) {
  for (int64_t row = 0; row < rows.count * rows.stride; row += rows.stride)
    for (int64_t i = row; i < row + rows.width; i += LANES) {
      const Activated made = activate<ACTIVATION>(load(values + i));
      store(values + i, made.value);
      if (slopes) store(slopes + i, made.slope);
      if (!tangents) continue;
      const floats tangent = load(tangents + i);
      store(tangents + i, made.slope * tangent);
      store(bends + i, made.bend * tangent);
    }
}

inline void activate_rows(int64_t activation, float* values, float* slopes, float* tangents, float* bends, Rows rows) {
  switch (activation) {
    case SHIFTED_SOFTPLUS: return activate_rows<SHIFTED_SOFTPLUS>(values, slopes, tangents, bends, rows);
    case SOFTPLUS: return activate_rows<SOFTPLUS>(values, slopes, tangents, bends, rows);
    case SILU: return activate_rows<SILU>(values, slopes, tangents, bends, rows);
    case RELU: return activate_rows<RELU>(values, slopes, tangents, bends, rows);
    case TANH: return activate_rows<TANH>(values, slopes, tangents, bends, rows);
    case SIGMOID: return activate_rows<SIGMOID>(values, slopes, tangents, bends, rows);
  }
}

}  // namespace POPGEO_ISA
}  // namespace popgeo
