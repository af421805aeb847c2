// The C function by which the caller's thread, and the threads of its parallel regions, treat denormal numbers as zeros.
#include "denormals.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using popgeo::POPGEO_ISA::denormals;
using popgeo::POPGEO_ISA::set_denormals;

// Gives a setting, -1 for flushed, to the calling thread and to the threads of its parallel regions. Returns the caller's
// setting from before.
EXPORT int64_t popgeo_set_denormals(int64_t setting, [[maybe_unused]] int64_t num_threads) {
  const uint64_t before = denormals();
  const uint64_t bits = uint64_t(setting) & popgeo::POPGEO_ISA::FLUSHED;
  set_denormals(bits);
#ifdef _OPENMP
  if (num_threads > 1) {
#pragma omp parallel num_threads(int(num_threads))
    set_denormals(bits);
  }
#endif
  return int64_t(before);
}
