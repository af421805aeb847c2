// The C function of stochastic rounding, by the newest instruction set that the processor has.
#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

#define POPGEO_DECLARE(isa)                                                                                    \
  namespace isa {                                                                                              \
  void round_stochastic(const uint32_t* x, uint16_t* out, int64_t size, uint32_t first_key, uint32_t second_key,  \
                        bool to_bfloat16, int64_t num_threads);                                                \
  }

namespace popgeo {

extern int64_t chosen_isa;

POPGEO_DECLARE(baseline)
#ifdef POPGEO_HAS_V3
POPGEO_DECLARE(v3)
#endif
#ifdef POPGEO_HAS_V4
POPGEO_DECLARE(v4)
#endif

}  // namespace popgeo

EXPORT void popgeo_round_stochastic(const uint32_t* x, uint16_t* out, int64_t size, uint32_t first_key,
                                    uint32_t second_key, int64_t to_bfloat16, int64_t num_threads) {
#ifdef POPGEO_HAS_V4
  if (popgeo::chosen_isa == 2)
    return popgeo::v4::round_stochastic(x, out, size, first_key, second_key, to_bfloat16 != 0, num_threads);
#endif
#ifdef POPGEO_HAS_V3
  if (popgeo::chosen_isa >= 1)
    return popgeo::v3::round_stochastic(x, out, size, first_key, second_key, to_bfloat16 != 0, num_threads);
#endif
  popgeo::baseline::round_stochastic(x, out, size, first_key, second_key, to_bfloat16 != 0, num_threads);
}
