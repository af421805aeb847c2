// One vector register per instruction set, and how each element type is read into it and rounded out of it.
//
// Included by files that are compiled once per instruction set (POPGEO_ISA names it); everything lives in a namespace of
// that name, and nothing of the standard library's templates is used, so that the linker cannot merge a function
// compiled for a newer processor into the baseline.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define POPGEO_HAS_FMA
#endif

#ifndef POPGEO_ISA
#define POPGEO_ISA baseline
#endif

namespace popgeo {
namespace POPGEO_ISA {

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64;
#elif defined(__AVX2__)
constexpr int VECTOR_BYTES = 32;
#else
constexpr int VECTOR_BYTES = 16;
#endif

struct bfloat16 {
  uint16_t bits;
};
struct float16 {
  uint16_t bits;
};

// What an element type is summed in.
template <class T>
struct Sum {
  using type = T;
};
template <>
struct Sum<bfloat16> {
  using type = float;
};
template <>
struct Sum<float16> {
  using type = float;
};

template <class A>
struct Vector {
  typedef A type __attribute__((vector_size(VECTOR_BYTES)));
  static constexpr int lanes = VECTOR_BYTES / sizeof(A);
};
// No vectors of halves: the functions below load and store them.
template <>
struct Vector<bfloat16> {};
template <>
struct Vector<float16> {};

template <class To, class From>
inline To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "the same number of bytes");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

// Scalars -----------------------------------------------------------------------------------------------------------

template <class T>
inline T widen(T value) {
  return value;
}
inline float widen(bfloat16 value) { return bit_cast<float>(uint32_t(value.bits) << 16); }
inline float widen(float16 value) {
  const uint32_t sign = uint32_t(value.bits & 0x8000) << 16;
  const uint32_t magnitude = value.bits & 0x7fff;
  if (magnitude >= 0x7c00) return bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ff) << 13);  // inf, NaN
  if (magnitude >= 0x0400) return bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  const float subnormal = float(int32_t(magnitude)) * (1.0f / 16777216.0f);  // magnitude * 2^-24, exact
  return sign ? -subnormal : subnormal;
}

template <class T>
struct Narrow {
  static T of(T value) { return value; }
};
template <>
struct Narrow<bfloat16> {
  static bfloat16 of(float value) {
    const uint32_t bits = bit_cast<uint32_t>(value);
    if (value != value) return {uint16_t(bits >> 16 | 0x40)};
    return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};  // to nearest, ties to even
  }
};
template <>
struct Narrow<float16> {
  static float16 of(float value) {
    const uint32_t bits = bit_cast<uint32_t>(value);
    const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000u) return {uint16_t(sign | 0x7e00)};
    if (magnitude >= 0x477ff000u) return {uint16_t(sign | 0x7c00)};  // 65520 and above round to infinity
    if (magnitude < 0x38800000u) {                                   // below 2^-14: a multiple of 2^-24
      // Adding 0.5 leaves the multiple of 2^-24 in the low bits, rounded to nearest even by the adder itself.
      const uint32_t shifted = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f);
      return {uint16_t(sign | uint16_t(shifted - 0x3f000000u))};
    }
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return {uint16_t(sign | uint16_t((rounded - (112u << 23)) >> 13))};
  }
};

// Vectors -----------------------------------------------------------------------------------------------------------

template <class T>
inline typename Vector<T>::type load(const T* from) {
  typename Vector<T>::type vector;
  memcpy(&vector, from, VECTOR_BYTES);
  return vector;
}

template <class T>
inline void store(T* to, typename Vector<T>::type vector) {
  memcpy(to, &vector, VECTOR_BYTES);
}

using floats = Vector<float>::type;
using words = Vector<uint32_t>::type;
typedef uint16_t half_words __attribute__((vector_size(VECTOR_BYTES / 2)));
constexpr int64_t LANES = Vector<float>::lanes;

// Rounded once where the processor can, with the same bits on every one of those; twice elsewhere.
inline floats fma(floats a, floats b, floats c) {
#if defined(__AVX512F__)
  return bit_cast<floats>(_mm512_fmadd_ps(bit_cast<__m512>(a), bit_cast<__m512>(b), bit_cast<__m512>(c)));
#elif defined(__AVX2__) && defined(__FMA__)
  return bit_cast<floats>(_mm256_fmadd_ps(bit_cast<__m256>(a), bit_cast<__m256>(b), bit_cast<__m256>(c)));
#elif defined(__aarch64__)
  return bit_cast<floats>(vfmaq_f32(bit_cast<float32x4_t>(c), bit_cast<float32x4_t>(a), bit_cast<float32x4_t>(b)));
#elif defined(POPGEO_HAS_FMA)
  for (int lane = 0; lane < LANES; ++lane) c[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
  return c;
#else
  return a * b + c;
#endif
}

using doubles = Vector<double>::type;
using long_words = Vector<uint64_t>::type;

inline doubles fma(doubles a, doubles b, doubles c) {
#if defined(__AVX512F__)
  return bit_cast<doubles>(_mm512_fmadd_pd(bit_cast<__m512d>(a), bit_cast<__m512d>(b), bit_cast<__m512d>(c)));
#elif defined(__AVX2__) && defined(__FMA__)
  return bit_cast<doubles>(_mm256_fmadd_pd(bit_cast<__m256d>(a), bit_cast<__m256d>(b), bit_cast<__m256d>(c)));
#elif defined(__aarch64__)
  return bit_cast<doubles>(vfmaq_f64(bit_cast<float64x2_t>(c), bit_cast<float64x2_t>(a), bit_cast<float64x2_t>(b)));
#elif defined(POPGEO_HAS_FMA)
  for (int lane = 0; lane < Vector<double>::lanes; ++lane) c[lane] = __builtin_fma(a[lane], b[lane], c[lane]);
  return c;
#else
  return a * b + c;
#endif
}

inline floats splat(float value) { return value - floats{}; }  // minus zero, which keeps the sign of a zero
inline doubles splat(double value) { return value - doubles{}; }

inline floats load(const bfloat16* from) {
  half_words bits;
  memcpy(&bits, from, sizeof(bits));
  return bit_cast<floats>(__builtin_convertvector(bits, words) << 16);
}

inline void store(bfloat16* to, floats vector) {
  const words bits = bit_cast<words>(vector);
  const words rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const words is_nan = bit_cast<words>(vector != vector);
  const half_words result = __builtin_convertvector((is_nan & (bits >> 16 | 0x40)) | (~is_nan & rounded), half_words);
  memcpy(to, &result, sizeof(result));
}

#if defined(__AVX512F__)
// With a mask of all lanes, because GCC 12 warns of the plain conversions.
inline floats load(const float16* from) {
  return bit_cast<floats>(_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
}
inline void store(float16* to, floats vector) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_maskz_cvtps_ph(0xffff, bit_cast<__m512>(vector), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__F16C__) && defined(__AVX2__)
inline floats load(const float16* from) {
  return bit_cast<floats>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
inline void store(float16* to, floats vector) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(bit_cast<__m256>(vector), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__aarch64__)
inline floats load(const float16* from) {
  float16x4_t halves;
  memcpy(&halves, from, sizeof(halves));
  return bit_cast<floats>(vcvt_f32_f16(halves));
}
inline void store(float16* to, floats vector) {
  const float16x4_t halves = vcvt_f16_f32(bit_cast<float32x4_t>(vector));
  memcpy(to, &halves, sizeof(halves));
}
#else
inline floats load(const float16* from) {
  floats vector;
  for (int lane = 0; lane < Vector<float>::lanes; ++lane) vector[lane] = widen(from[lane]);
  return vector;
}
inline void store(float16* to, floats vector) {
  for (int lane = 0; lane < Vector<float>::lanes; ++lane) to[lane] = Narrow<float16>::of(vector[lane]);
}
#endif

// Stores past the caches, for results that are larger than them and would push out data in use. Aligned to a vector.
template <class T>
inline void stream(T* to, typename Vector<T>::type vector) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), bit_cast<__m512i>(vector));
#elif defined(__AVX2__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), bit_cast<__m256i>(vector));
#elif defined(__SSE2__)
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), bit_cast<__m128i>(vector));
#else
  store(to, vector);
#endif
}

inline void stream(float* to, float value) {
#if defined(__SSE2__)
  _mm_stream_si32(reinterpret_cast<int*>(to), bit_cast<int>(value));
#else
  *to = value;
#endif
}
inline void stream(double* to, double value) {
#if defined(__SSE2__) && defined(__x86_64__)
  _mm_stream_si64(reinterpret_cast<long long*>(to), bit_cast<long long>(value));
#else
  *to = value;
#endif
}

inline void finish_stream() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace POPGEO_ISA
}  // namespace popgeo
