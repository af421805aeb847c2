// Aligned inputs. A tensor over the bytes of a file may begin at any byte. Processors read numbers there, but compilers
// assume that pointers are aligned. So such an input is copied before a kernel reads it; others cost one comparison.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace popgeo {

// Reads number i at any address.
template <class T>
inline T number_at(const T* data, int64_t i) {
  T number;
  memcpy(&number, reinterpret_cast<const char*>(data) + i * int64_t(sizeof(T)), sizeof(T));
  return number;
}

// Holds the copies of one call.
class Aligned {
 public:
  Aligned() = default;
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  ~Aligned() {
    while (num_copies_) free(copies_[--num_copies_]);
  }

  // Returns the same `count` numbers, of 2, 4 or 8 bytes each, at an aligned address.
  const void* operator()(const void* data, int64_t count, int64_t element_bytes) {
    if (!(reinterpret_cast<uintptr_t>(data) & uintptr_t(element_bytes - 1))) return data;
    return copy(data, size_t(count * element_bytes));
  }
  template <class T>
  const T* operator()(const T* data, int64_t count) {
    return static_cast<const T*>((*this)(data, count, int64_t(sizeof(T))));
  }

  // Returns whether there was no memory for a copy; the address returned for it may not be read.
  bool failed() const { return failed_; }

 private:
  const void* copy(const void* data, size_t size) {
    void* memory = num_copies_ < MOST ? malloc(size ? size : 1) : nullptr;
    if (!memory) {
      failed_ = true;
      return nullptr;
    }
    memcpy(memory, data, size);
    return copies_[num_copies_++] = memory;
  }

  static constexpr int MOST = 16;
  void* copies_[MOST];
  int num_copies_ = 0;
  bool failed_ = false;
};

}  // namespace popgeo
