// Whether a thread's arithmetic takes denormal numbers for zeros, which saves processors up to a hundred times the work.
//
// Each thread has its own setting, and takes that of the thread that starts it only once, when it is started. So a
// parallel region that computes gives its threads the caller's: the same bits whoever works, and the same speed.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#ifndef POPGEO_ISA
#define POPGEO_ISA baseline
#endif

namespace popgeo {
namespace POPGEO_ISA {

// The bits that decide it, as the processor's control register holds them: results flushed, operands taken for zeros.
#if defined(__SSE2__)
constexpr uint64_t FLUSHED = 0x8040;  // FTZ and DAZ of MXCSR
inline uint64_t control() { return _mm_getcsr(); }
inline void set_control(uint64_t bits) { _mm_setcsr(uint32_t(bits)); }
#elif defined(__aarch64__)
constexpr uint64_t FLUSHED = uint64_t(1) << 24;  // FZ of FPCR, which does both
inline uint64_t control() {
  uint64_t bits;
  __asm__ __volatile__("mrs %0, fpcr" : "=r"(bits));
  return bits;
}
inline void set_control(uint64_t bits) { __asm__ __volatile__("msr fpcr, %0" : : "r"(bits)); }
#else
constexpr uint64_t FLUSHED = 0;
inline uint64_t control() { return 0; }
inline void set_control(uint64_t) {}
#endif

inline uint64_t denormals() { return control() & FLUSHED; }

inline void set_denormals(uint64_t bits) {
  const uint64_t now = control();
  if ((now & FLUSHED) != bits) set_control((now & ~FLUSHED) | bits);
}

// Lets a thread treat denormal numbers as another one does, as long as it lives.
class Denormals {
 public:
  explicit Denormals(uint64_t bits) : before_(denormals()) { set_denormals(bits); }
  ~Denormals() { set_denormals(before_); }
  Denormals(const Denormals&) = delete;
  Denormals& operator=(const Denormals&) = delete;

 private:
  const uint64_t before_;
};

}  // namespace POPGEO_ISA
}  // namespace popgeo
