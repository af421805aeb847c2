// The setting by which a thread treats denormal numbers as zeros, which saves processors up to a hundred times the work.
//
// Each thread has its own setting, which it copies from the thread that starts it. A later change does not reach it. So
// each parallel region gives the caller's setting to its threads: all numbers of threads give the same bits and speed.
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

// The bits of the setting in the processor's control register: flush results, and treat operands as zeros.
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

// Gives a thread the setting of another thread as long as the object exists.
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
