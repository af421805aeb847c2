// The C function of chains: picks the newest instruction set that the processor has.
#include "chain.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace popgeo {

#ifdef POPGEO_HAS_V3
namespace v3 {
int64_t run_chain(const Chain& chain);
}
#endif
#ifdef POPGEO_HAS_V4
namespace v4 {
int64_t run_chain(const Chain& chain);
}
#endif

using Run = int64_t (*)(const Chain&);

// Null if a fused multiply-add is a call of the mathematical library, because torch is then faster.
inline Run run_of_isa([[maybe_unused]] int64_t newest) {
#ifdef POPGEO_HAS_V4
  if (newest >= 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
    return v4::run_chain;
#endif
#ifdef POPGEO_HAS_V3
  if (newest >= 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return v3::run_chain;
#endif
#ifdef __FP_FAST_FMAF
  return POPGEO_ISA::run_chain;
#else
  return nullptr;
#endif
}

Run chosen_run = run_of_isa(2);

}  // namespace popgeo

// Returns whether chains run here; `newest` (2: AVX-512, 1: AVX2, 0: neither) limits the instruction set, for tests.
EXPORT int64_t popgeo_chain_isa(int64_t newest) {
  popgeo::chosen_run = popgeo::run_of_isa(newest);
  return popgeo::chosen_run != nullptr;
}

EXPORT int64_t popgeo_chain(const popgeo::Chain* chain) { return popgeo::chosen_run(*chain); }
