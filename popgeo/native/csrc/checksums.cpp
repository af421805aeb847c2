// CRC-32 as in zlib, and the check that blocks of mapped files are unchanged. popgeo/data/store/first_use.py decides when
// a block is compared.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define POPGEO_API extern "C" __attribute__((visibility("default")))

namespace {

constexpr uint32_t kPolynomial = 0xEDB88320u;  // of CRC-32, its highest power in the lowest bit
constexpr int64_t kBlock = 1 << 16;            // BLOCK_BYTES of manifest.py
constexpr int64_t kAhead = 8;                  // graphs whose row pointers are fetched before they are needed

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ (rest & 1 ? kPolynomial : 0);
    tables[0][byte] = rest;
  }
  for (int k = 1; k < 8; ++k)
    for (int byte = 0; byte < 256; ++byte)
      tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 255];
  return tables;
}

constexpr Tables kTables = make_tables();

// Takes bytes into the register of a division by the polynomial, eight at a time.
uint32_t divide(uint32_t rest, const unsigned char* from, int64_t count) {
  for (; count >= 8; from += 8, count -= 8) {
    uint32_t next = rest;
    for (int k = 0; k < 4; ++k) next ^= uint32_t(from[k]) << (8 * k);
    rest = 0;
    for (int k = 0; k < 4; ++k) rest ^= kTables[7 - k][(next >> (8 * k)) & 255] ^ kTables[3 - k][from[4 + k]];
  }
  for (; count > 0; ++from, --count) rest = (rest >> 8) ^ kTables[0][(rest ^ *from) & 255];
  return rest;
}

#if defined(__x86_64__)
// x to the power n modulo the polynomial, as a factor of a carry-less product of numbers whose bits are reversed.
constexpr uint64_t power(int n) {
  uint32_t rest = 0x80000000u;  // x to the power 0
  for (int i = 0; i < n; ++i) rest = (rest >> 1) ^ (rest & 1 ? kPolynomial : 0);
  return uint64_t(rest) << 1;
}

__attribute__((target("pclmul,sse4.1"))) inline __m128i fold(__m128i sum, __m128i factors, const unsigned char* next) {
  const __m128i low = _mm_clmulepi64_si128(sum, factors, 0x00), high = _mm_clmulepi64_si128(sum, factors, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), _mm_loadu_si128(reinterpret_cast<const __m128i*>(next)));
}

// The same register by carry-less products: 64 bytes and more become 16 that leave the same rest.
__attribute__((target("pclmul,sse4.1"))) uint32_t divide_by_products(uint32_t rest, const unsigned char* from,
                                                                      int64_t count) {
  const __m128i by_four = _mm_set_epi64x(int64_t(power(4 * 128 - 32)), int64_t(power(4 * 128 + 32)));
  const __m128i by_one = _mm_set_epi64x(int64_t(power(128 - 32)), int64_t(power(128 + 32)));
  __m128i sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16 * i));
  sums[0] = _mm_xor_si128(sums[0], _mm_cvtsi32_si128(int(rest)));
  for (from += 64, count -= 64; count >= 64; from += 64, count -= 64)
    for (int i = 0; i < 4; ++i) sums[i] = fold(sums[i], by_four, from + 16 * i);
  unsigned char left[16];
  for (int i = 1; i < 4; ++i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(left), sums[i]);
    sums[0] = fold(sums[0], by_one, left);
  }
  for (; count >= 16; from += 16, count -= 16) sums[0] = fold(sums[0], by_one, from);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(left), sums[0]);
  return divide(divide(0, left, 16), from, count);
}

// The same, two products at a time: 128 bytes and more become 128.
__attribute__((target("vpclmulqdq,pclmul,avx2"))) uint32_t divide_by_pairs(uint32_t rest, const unsigned char* from,
                                                                           int64_t count) {
  const __m256i by_eight = _mm256_set_epi64x(int64_t(power(8 * 128 - 32)), int64_t(power(8 * 128 + 32)),
                                             int64_t(power(8 * 128 - 32)), int64_t(power(8 * 128 + 32)));
  unsigned char left[128];
  __m256i sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32 * i));
  sums[0] = _mm256_xor_si256(sums[0], _mm256_set_epi32(0, 0, 0, 0, 0, 0, 0, int(rest)));
  for (from += 128, count -= 128; count >= 128; from += 128, count -= 128)
    for (int i = 0; i < 4; ++i) {
      const __m256i next = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32 * i));
      const __m256i low = _mm256_clmulepi64_epi128(sums[i], by_eight, 0x00);
      sums[i] = _mm256_xor_si256(_mm256_xor_si256(low, _mm256_clmulepi64_epi128(sums[i], by_eight, 0x11)), next);
    }
  for (int i = 0; i < 4; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(left + 32 * i), sums[i]);
  rest = divide_by_products(0, left, 128);
  return count >= 64 ? divide_by_products(rest, from, count) : divide(rest, from, count);
}

const bool kHasProducts = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
const bool kHasPairs = kHasProducts && __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx2");
#endif

uint32_t crc32(const unsigned char* from, int64_t count) {
#if defined(__x86_64__)
  if (kHasPairs && count >= 256) return ~divide_by_pairs(~0u, from, count);
  if (kHasProducts && count >= 64) return ~divide_by_products(~0u, from, count);
#endif
  return ~divide(~0u, from, count);
}

// One mapped file; popgeo/data/store/first_use.py writes these fields in this order.
struct File {
  const unsigned char* data;
  const int64_t* row_pointer;  // null stands for one row a graph
  int64_t row_bytes;
  int64_t num_parts;   // equal parts one after the other, each with all rows
  int64_t part_bytes;
  const unsigned char* sums;  // of each block of each part: 4 bytes
  unsigned char* seen;        // for each block whether it has been compared
  int64_t* left;              // number of blocks that have not been compared
};

// Checks that a block is unchanged; only the first call for a block compares it.
bool is_whole(const File& file, int64_t part, int64_t block) {
  const int64_t number = part * ((file.part_bytes + kBlock - 1) / kBlock) + block;
  if (__atomic_load_n(file.seen + number, __ATOMIC_RELAXED)) return true;
  uint32_t wanted;
  std::memcpy(&wanted, file.sums + 4 * number, 4);
  const int64_t start = block * kBlock;
  const unsigned char* from = file.data + part * file.part_bytes + start;
  if (crc32(from, std::min(kBlock, file.part_bytes - start)) != wanted) return false;
  if (!__atomic_exchange_n(file.seen + number, 1, __ATOMIC_RELAXED)) __atomic_fetch_sub(file.left, 1, __ATOMIC_RELAXED);
  return true;
}

}  // namespace

// Compares the blocks with rows of some graphs with their checksums; returns the first file that differs, or -1.
POPGEO_API int64_t popgeo_compare_blocks(const File* files, int64_t num_files, const int64_t* graphs,
                                         int64_t num_graphs) {
  for (int64_t f = 0; f < num_files; ++f) {
    const File& file = files[f];
    if (__atomic_load_n(file.left, __ATOMIC_RELAXED) == 0) continue;
    for (int64_t g = 0; g < num_graphs; ++g) {
      if (file.row_pointer && g + kAhead < num_graphs) __builtin_prefetch(file.row_pointer + graphs[g + kAhead]);
      const int64_t first = file.row_pointer ? file.row_pointer[graphs[g]] : graphs[g];
      const int64_t stop = file.row_pointer ? file.row_pointer[graphs[g] + 1] : first + 1;
      const int64_t start = first * file.row_bytes, end = stop * file.row_bytes;
      for (int64_t block = start / kBlock; block * kBlock < end; ++block)
        for (int64_t part = 0; end > start && part < file.num_parts; ++part)
          if (!is_whole(file, part, block)) return f;
    }
  }
  return -1;
}

// Updates copies of arrays; returns whether a byte of them had changed.
POPGEO_API int64_t popgeo_update_bytes(const void* const* arrays, void* const* copies, const int64_t* sizes,
                                       int64_t count) {
  int64_t changed = 0;
  for (int64_t i = 0; i < count; ++i)
    if (std::memcmp(arrays[i], copies[i], sizes[i]) != 0) {
      std::memcpy(copies[i], arrays[i], sizes[i]);
      changed = 1;
    }
  return changed;
}
