// Inputs at addresses that their types allow. A tensor over the bytes of a file may begin at any byte; processors read
// numbers there, but compilers may assume that no pointer leads there, and so such an input is copied before a kernel
// sees it. For all others it costs a comparison.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace popgeo {

// Number i at any address.
template <class T>
inline T number_at(const T* data, int64_t i) {
  T number;
  memcpy(&number, reinterpret_cast<const char*>(data) + i * int64_t(sizeof(T)), sizeof(T));
  return number;
}

// Holds the copies that one call needs.
class Aligned {
 public:
  Aligned() = default;
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  ~Aligned() {
    while (num_copies_) free(copies_[--num_copies_]);
  }

  // The same numbers, `count` of them with so many bytes each (2, 4 or 8).
  const void* operator()(const void* data, int64_t count, int64_t element_bytes) {
    if (!(reinterpret_cast<uintptr_t>(data) & uintptr_t(element_bytes - 1))) return data;
    return copy(data, size_t(count * element_bytes));
  }
  template <class T>
  const T* operator()(const T* data, int64_t count) {
    return static_cast<const T*>((*this)(data, count, int64_t(sizeof(T))));
  }

  // Whether there was no memory for a copy; what was returned for it may not be read.
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
