// The operations by element of a chain, each one loop over a block, in the order of their codes.
// To be included once per instruction set, after POPGEO_VECTORISE has been defined (see chains.cpp).
#pragma once

#include "chain.h"
#include "chain_math.h"
#include "kernels.h"

namespace popgeo {
namespace POPGEO_ISA {
namespace chain {

// Operands may be the memory of the result itself, element by element, which is no dependence between elements.
using Loop = void (*)(float* out, const float* a, const float* b, const float* c, int64_t size);

enum Form : int64_t { VECTORS = 0, LAST_SCALAR = 1, FIRST_SCALAR = 2 };

template <class F>
void unary(float* out, const float* a, const float*, const float*, int64_t size) {
  POPGEO_VECTORISE
  for (int64_t i = 0; i < size; ++i) out[i] = F::of(a[i]);
}

template <class F>
void binary(float* out, const float* a, const float* b, const float*, int64_t size) {
  POPGEO_VECTORISE
  for (int64_t i = 0; i < size; ++i) out[i] = F::of(a[i], b[i]);
}

template <class F>
void binary_with_scalar(float* out, const float* a, const float* b, const float*, int64_t size) {
  const float y = *b;
  POPGEO_VECTORISE
  for (int64_t i = 0; i < size; ++i) out[i] = F::of(a[i], y);
}

template <class F>
void scalar_with_binary(float* out, const float* a, const float* b, const float*, int64_t size) {
  const float x = *a;
  POPGEO_VECTORISE
  for (int64_t i = 0; i < size; ++i) out[i] = F::of(x, b[i]);
}

template <class F>
void ternary(float* out, const float* a, const float* b, const float* c, int64_t size) {
  POPGEO_VECTORISE
  for (int64_t i = 0; i < size; ++i) out[i] = F::of(a[i], b[i], c[i]);
}

template <class F>
void ternary_with_scalar(float* out, const float* a, const float* b, const float* c, int64_t size) {
  const float z = *c;
  POPGEO_VECTORISE
  for (int64_t i = 0; i < size; ++i) out[i] = F::of(a[i], b[i], z);
}

// Beyond LARGEST_ANGLE the mathematical library finds the phase, element by element.
template <int QUARTERS>
void trigonometric(float* out, const float* a, const float*, const float*, int64_t size) {
  int32_t num_large = 0;
  for (int64_t i = 0; i < size; ++i) num_large += absolute(a[i]) > LARGEST_ANGLE;
  if (num_large) {
    for (int64_t i = 0; i < size; ++i) {
      const float x = a[i], exact = QUARTERS ? __builtin_cosf(x) : __builtin_sinf(x);
      out[i] = absolute(x) > LARGEST_ANGLE || x == 0.0f ? exact : sine(x, QUARTERS);
    }
    return;
  }
  POPGEO_VECTORISE
  for (int64_t i = 0; i < size; ++i) out[i] = !QUARTERS && a[i] == 0.0f ? a[i] : sine(a[i], QUARTERS);
}

struct Row {
  Loop loops[3];
};
template <class F>
constexpr Row one() {
  return {{unary<F>, nullptr, nullptr}};
}
template <class F>
constexpr Row two() {
  return {{binary<F>, binary_with_scalar<F>, scalar_with_binary<F>}};
}
template <class F>
constexpr Row three() {
  return {{ternary<F>, ternary_with_scalar<F>, nullptr}};
}

#define POPGEO_ONE(Name, expression) \
  struct Name { static POPGEO_INLINE float of(float x) { return expression; } }
#define POPGEO_TWO(Name, expression) \
  struct Name { static POPGEO_INLINE float of(float x, float y) { return expression; } }
#define POPGEO_THREE(Name, expression) \
  struct Name { static POPGEO_INLINE float of(float x, float y, float z) { return expression; } }

POPGEO_ONE(Copy, x);
POPGEO_ONE(Neg, -x);
POPGEO_ONE(Abs, absolute(x));
POPGEO_ONE(Sign, float(x > 0.0f) - float(x < 0.0f));
POPGEO_ONE(Not, x == 0.0f ? 1.0f : 0.0f);
POPGEO_ONE(Exp, exp(x));
POPGEO_ONE(Expm1, x == 0.0f ? x : expm1(x));  // a zero keeps its sign
POPGEO_ONE(Log, log(x));
POPGEO_ONE(Log1p, log1p(x));
POPGEO_ONE(Sqrt, sqrt(x));
POPGEO_ONE(Rsqrt, 1.0f / sqrt(x));
POPGEO_ONE(Reciprocal, 1.0f / x);
POPGEO_ONE(Tanh, x == 0.0f ? x : tanh(x));
POPGEO_ONE(Sigmoid, sigmoid(x));
POPGEO_ONE(Silu, x / (1.0f + exp(-x)));
POPGEO_ONE(ShiftedSoftplus, shifted_softplus(x));
POPGEO_TWO(Add, x + y);
POPGEO_TWO(Sub, x - y);
POPGEO_TWO(Mul, x* y);
POPGEO_TWO(Div, x / y);
// NaN wins on either side.
POPGEO_TWO(Max, x > y || x != x ? x : y);
POPGEO_TWO(Min, x < y || x != x ? x : y);
POPGEO_TWO(Gt, x > y ? 1.0f : 0.0f);
POPGEO_TWO(Ge, x >= y ? 1.0f : 0.0f);
POPGEO_TWO(Lt, x < y ? 1.0f : 0.0f);
POPGEO_TWO(Le, x <= y ? 1.0f : 0.0f);
POPGEO_TWO(Eq, x == y ? 1.0f : 0.0f);
POPGEO_TWO(Ne, x != y ? 1.0f : 0.0f);
POPGEO_TWO(And, x != 0.0f && y != 0.0f ? 1.0f : 0.0f);
POPGEO_TWO(Or, x != 0.0f || y != 0.0f ? 1.0f : 0.0f);
POPGEO_TWO(ShiftedSoftplusBackward, shifted_softplus_backward(x, y));
POPGEO_TWO(SiluBackward, silu_backward(x, y));
POPGEO_TWO(SigmoidBackward, x*(1.0f - y) * y);
POPGEO_TWO(TanhBackward, x* fma(-y, y, 1.0f));
POPGEO_THREE(Where, x != 0.0f ? y : z);
POPGEO_THREE(Fma, fma(y, z, x));
POPGEO_THREE(Fnma, fma(-y, z, x));
POPGEO_THREE(Lerp, lerp(x, y, z));

// In the order of CODES in popgeo/engine/fuse/chain.py.
const Row TABLE[] = {
    one<Copy>(), one<Neg>(), one<Abs>(), one<Sign>(), one<Not>(), one<Exp>(), one<Expm1>(), one<Log>(), one<Log1p>(),
    one<Sqrt>(), one<Rsqrt>(), one<Reciprocal>(), one<Tanh>(), one<Sigmoid>(), one<Silu>(), {{trigonometric<0>}}, {{trigonometric<1>}},
    one<ShiftedSoftplus>(),
    two<Add>(), two<Sub>(), two<Mul>(), two<Div>(), two<Max>(), two<Min>(), two<Gt>(), two<Ge>(), two<Lt>(), two<Le>(),
    two<Eq>(), two<Ne>(), two<And>(), two<Or>(), two<ShiftedSoftplusBackward>(), two<SiluBackward>(),
    two<SigmoidBackward>(), two<TanhBackward>(),
    three<Where>(), three<Fma>(), three<Fnma>(), three<Lerp>(),
};
constexpr int64_t NUM_COMPUTED = sizeof(TABLE) / sizeof(TABLE[0]);

}  // namespace chain
}  // namespace POPGEO_ISA
}  // namespace popgeo
