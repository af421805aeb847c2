// float32 to float16 or bfloat16, up or down at random with probabilities that keep the expectation. Random numbers are a
// function of a key and of the element's number, so they are the same for any number of threads.
#include <cstdint>
#include <cstring>

#ifndef POPGEO_ISA
#define POPGEO_ISA baseline
#endif

namespace popgeo {
namespace POPGEO_ISA {

namespace {

// Public domain: https://github.com/skeeto/hash-prospector, "lowbias32".
inline uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}

inline uint32_t draw(uint32_t number, uint32_t first_key, uint32_t second_key) {
  return mixed(mixed(number ^ first_key) + second_key);
}

struct ToHalf {
  static uint16_t from(uint32_t bits, uint32_t random) {
    const uint32_t magnitude = bits & 0x7fffffffU, sign = (bits >> 16) & 0x8000U;
    const uint32_t exponent = magnitude >> 23;
    const uint32_t base = exponent >= 113 ? (exponent - 113) << 10 : 0;
    // The neighbors are 2^shift units of the mantissa apart; a shift above 31 is cut, so that words hold 2^shift.
    const uint32_t shift = exponent >= 113 ? 13 : 126 - exponent;
    const uint32_t lost = shift > 31 ? (shift > 62 ? 31 : shift - 31) : 0;
    const uint32_t mantissa = ((magnitude & 0x7fffffU) | (exponent ? 0x800000U : 0U)) >> lost;
    const uint32_t kept = shift > 31 ? 31 : shift, below = (1U << kept) - 1;
    uint32_t half = base + (mantissa >> kept) + ((random & below) < (mantissa & below) ? 1U : 0U);
    half = magnitude >= 0x47800000U ? 0x7c00U : half;  // 65,536 and beyond
    half = magnitude > 0x7f800000U ? 0x7e00U : half;
    return uint16_t(sign | half);
  }
};

struct ToBfloat {
  static uint16_t from(uint32_t bits, uint32_t random) {
    const uint32_t rounded = (bits + (random & 0xffffU)) >> 16;
    return uint16_t((bits & 0x7fffffffU) > 0x7f800000U ? bits >> 16 | 0x40U : rounded);
  }
};

constexpr int64_t BLOCK = 8192;

template <typename To>
void round_block(const uint32_t* __restrict__ x, uint16_t* __restrict__ out, int64_t begin, int64_t end,
                 uint32_t first_key, uint32_t second_key) {
  for (int64_t i = begin; i < end; ++i) out[i] = To::from(x[i], draw(uint32_t(i), first_key, second_key));
}

template <typename To>
void round_all(const uint32_t* x, uint16_t* out, int64_t size, uint32_t first_key, uint32_t second_key,
               [[maybe_unused]] int64_t num_threads) {
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1 && size > 4 * BLOCK)
  for (int64_t begin = 0; begin < size; begin += BLOCK)
    round_block<To>(x, out, begin, begin + BLOCK < size ? begin + BLOCK : size, first_key, second_key);
}

}  // namespace

void round_stochastic(const uint32_t* x, uint16_t* out, int64_t size, uint32_t first_key, uint32_t second_key,
                      bool to_bfloat16, int64_t num_threads) {
  if (to_bfloat16)
    round_all<ToBfloat>(x, out, size, first_key, second_key, num_threads);
  else
    round_all<ToHalf>(x, out, size, first_key, second_key, num_threads);
}

}  // namespace POPGEO_ISA
}  // namespace popgeo
