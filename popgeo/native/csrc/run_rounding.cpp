// The C function of stochastic rounding, by the newest instruction set that the processor has.
#include "aligned.h"
#include "kernels.h"
#include "random_numbers.h"

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

struct RoundCall {
  const uint32_t* x;
  uint16_t* out;
  const int64_t* counter;
  int64_t size, to_bfloat16, num_threads;
};

#define POPGEO_RUN(isa) \
  popgeo::isa::round_stochastic(x, call->out, call->size, first_key, second_key, call->to_bfloat16 != 0, call->num_threads)

EXPORT int64_t popgeo_round_stochastic(const RoundCall* call) {
  const uint64_t key = popgeo::hash64(uint64_t(popgeo::number_at(call->counter, 0)), 0);
  const uint32_t first_key = uint32_t(key), second_key = uint32_t(key >> 32);
  popgeo::Aligned aligned;
  const uint32_t* x = aligned(call->x, call->size);
  if (aligned.failed()) return popgeo::NO_MEMORY;
#ifdef POPGEO_HAS_V4
  if (popgeo::chosen_isa == 2) return POPGEO_RUN(v4), popgeo::OK;
#endif
#ifdef POPGEO_HAS_V3
  if (popgeo::chosen_isa >= 1) return POPGEO_RUN(v3), popgeo::OK;
#endif
  return POPGEO_RUN(baseline), popgeo::OK;
}
