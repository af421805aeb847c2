// Arrays of random numbers that are the same on every processor, and a sum of all bits that calls have written to others.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <vector>

// Input ---------------------------------------------------------------------------------------------------------------

inline thread_local uint64_t state;

inline uint64_t next() {  // SplitMix64
  uint64_t z = state += 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

inline int64_t below(int64_t limit) { return int64_t(next() % uint64_t(limit)); }
inline bool chance(int64_t percent) { return below(100) < percent; }

inline int64_t one_of(std::initializer_list<int64_t> values) { return values.begin()[below(int64_t(values.size()))]; }

inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Between -limit and limit, with a few of the numbers that go wrong first where `wild`.
inline float number(float limit, bool wild) {
  constexpr float INFINITE = __builtin_inff(), NOT_A_NUMBER = __builtin_nanf("");
  const float special[] = {0.0f,  -0.0f, 1e-40f,   -3e-39f,   1e-30f,      3e38f,
                           -3e38f, 1e20f, INFINITE, -INFINITE, NOT_A_NUMBER};
  if (wild && chance(3)) return special[below(11)];
  return limit * (float(int64_t(next() >> 40) - (1 << 23)) / float(1 << 23));
}

// Any float16 at all where `wild`, else one between -16 and 16.
inline uint16_t half(uint64_t bits, bool wild) {
  return uint16_t(wild ? bits : (bits & 0xffff) % 0x4c00 | (bits >> 16 & 1) << 15);
}

enum DType : int64_t { FLOAT32, FLOAT64, BFLOAT16, FLOAT16, INT32, INT64, INT8 };

inline int64_t size_of(int64_t dtype) {
  const int64_t sizes[] = {4, 8, 2, 2, 4, 8, 1};
  return sizes[dtype];
}

// Ends a byte after its last element, so that AddressSanitizer sees a step too far and that none is at address 0.
struct Array {
  int64_t dtype, count;
  std::vector<char> bytes;
  Array(int64_t type, int64_t size) : dtype(type), count(size), bytes(size_t(size * size_of(type)) + 1, char(0x5a)) {}
  template <class T = void>
  T* data() {
    return reinterpret_cast<T*>(bytes.data());
  }
};

inline thread_local std::deque<Array> arrays;  // of the present call; what it wrote is summed
inline thread_local std::vector<Array*> written;

inline Array& make(int64_t dtype, int64_t count) {
  arrays.emplace_back(dtype, count);
  return arrays.back();
}

inline Array& out(int64_t dtype, int64_t count) {
  written.push_back(&make(dtype, count));
  return arrays.back();
}

inline Array& values(int64_t dtype, int64_t count, float limit = 9.0f, bool wild = false) {
  Array& array = make(dtype, count);
  for (int64_t i = 0; i < count; ++i) {
    const float value = number(limit, wild);
    switch (dtype) {
      case FLOAT32: array.data<float>()[i] = value; break;
      case FLOAT64: array.data<double>()[i] = double(value) + double(next() >> 40) * 1e-9; break;
      case BFLOAT16: array.data<uint16_t>()[i] = uint16_t(bits_of(value) >> 16); break;
      case FLOAT16: array.data<uint16_t>()[i] = half(next(), wild); break;
      case INT32: array.data<int32_t>()[i] = int32_t(next()); break;
      case INT64: array.data<int64_t>()[i] = int64_t(next()); break;
      default: array.data<uint8_t>()[i] = uint8_t(below(2));
    }
  }
  return array;
}

inline Array& index(int64_t count, int64_t limit) {
  Array& array = make(INT64, count);
  int64_t* to = array.data<int64_t>();
  const bool sorted = chance(40);
  for (int64_t i = 0; i < count; ++i) to[i] = sorted ? i * limit / count : below(limit);
  if (count && chance(4)) to[below(count)] = one_of({-1, limit, int64_t(1) << 40});
  return array;
}

// Output --------------------------------------------------------------------------------------------------------------

inline thread_local uint64_t sum_of_bits;

inline void add_bits(uint64_t bits) { sum_of_bits = (sum_of_bits ^ bits) * 0x100000001B3ULL + (sum_of_bits >> 29); }

// Every NaN counts as the same one, since processors make different ones.
inline uint64_t bits_at(Array& array, int64_t i) {
  switch (array.dtype) {
    case FLOAT32: return array.data<float>()[i] != array.data<float>()[i] ? 0x7fc00000 : array.data<uint32_t>()[i];
    case FLOAT64: return array.data<double>()[i] != array.data<double>()[i] ? 0x7ff8 : array.data<uint64_t>()[i];
    case BFLOAT16: return (array.data<uint16_t>()[i] & 0x7fff) > 0x7f80 ? 0x7fc0 : array.data<uint16_t>()[i];
    case FLOAT16: return (array.data<uint16_t>()[i] & 0x7fff) > 0x7c00 ? 0x7e00 : array.data<uint16_t>()[i];
    case INT32: return array.data<uint32_t>()[i];
    case INT64: return array.data<uint64_t>()[i];
    default: return array.data<uint8_t>()[i];
  }
}
