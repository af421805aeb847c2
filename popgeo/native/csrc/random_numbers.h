// Random numbers by counter: the compiled twins of popgeo/random_numbers.py, equal to them bit for bit.
#pragma once

#include <cmath>
#include <cstdint>

namespace popgeo {

// Number `i` of the stream named by `key`: SplitMix64.
inline uint64_t hash64(uint64_t key, uint64_t i) {
  uint64_t z = key + (i + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

// Its upper half: `uniform`.
inline uint64_t hash32(uint64_t key, uint64_t i) { return hash64(key, i) >> 32; }

inline uint64_t below(uint64_t key, uint64_t i, uint64_t limit) {
  uint64_t draw = (hash64(key, i) >> 32) * limit;
  if ((draw & 0xFFFFFFFFULL) < limit) {  // seldom; only then can the draw be one of those that are too likely
    const uint64_t too_likely = ((1ULL << 32) - limit) % limit;
    while ((draw & 0xFFFFFFFFULL) < too_likely) draw = (hash64(key, i += 1ULL << 32) >> 32) * limit;
  }
  return draw >> 32;
}

inline double unit(uint64_t key, uint64_t i) {
  return (static_cast<double>(hash64(key, i) >> 11) + 0.5) * 0x1p-53;
}

inline double log_of(double x) {
  int exponent;
  double mantissa = std::frexp(x, &exponent);
  if (mantissa < 0.7071067811865476) mantissa *= 2.0, exponent -= 1;
  const double s = (mantissa - 1.0) / (mantissa + 1.0), z = s * s;
  constexpr int terms = 11;
  double series = 1.0 / (2 * terms + 1);
  for (int term = 2 * terms - 1; term > 0; term -= 2) series = series * z + 1.0 / term;
  return 2.0 * s * series + exponent * 0.6931471805599453;
}

}  // namespace popgeo
