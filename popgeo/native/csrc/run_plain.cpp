// The C functions of plain operations: they pick the newest instruction set that the processor has.
#include "plain.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace popgeo {

#define POPGEO_PLAIN(isa)                                                \
  namespace isa {                                                        \
  int64_t run_elements(const Elements* operations, int64_t count);       \
  int64_t run_reduction(const Reduction& reduction);                     \
  }
POPGEO_PLAIN(POPGEO_ISA)
#ifdef POPGEO_HAS_V3
POPGEO_PLAIN(v3)
#endif
#ifdef POPGEO_HAS_V4
POPGEO_PLAIN(v4)
#endif

struct Plain {
  int64_t (*elements)(const Elements*, int64_t);
  int64_t (*reduction)(const Reduction&);
};

inline Plain plain_of_isa() {
#ifdef POPGEO_HAS_V4
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
    return {v4::run_elements, v4::run_reduction};
#endif
#ifdef POPGEO_HAS_V3
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {v3::run_elements, v3::run_reduction};
#endif
  return {POPGEO_ISA::run_elements, POPGEO_ISA::run_reduction};
}

const Plain chosen_plain = plain_of_isa();

}  // namespace popgeo

// Runs operations by element: their number, then their structures.
EXPORT int64_t popgeo_elements(const int64_t* words) {
  return popgeo::chosen_plain.elements(reinterpret_cast<const popgeo::Elements*>(words + 1), words[0]);
}

EXPORT int64_t popgeo_reduction(const popgeo::Reduction* reduction) { return popgeo::chosen_plain.reduction(*reduction); }
