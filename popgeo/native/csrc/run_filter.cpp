// The C functions of the filter network's tail, by the newest instruction set that the processor has.
#include "aligned.h"
#include "kernels.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

#define POPGEO_DECLARE(isa)                                                                         \
  namespace isa {                                                                                   \
  void shifted_softplus(const float* x, float* y, int64_t size);                                    \
  void shifted_softplus_backward(const float* grad, const float* x, float* out, int64_t size);      \
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

struct SoftplusCall {
  const float* grad;  // null: forward
  const float* x;
  float* out;
  int64_t size;
};

#define POPGEO_RUN(isa)                                                                              \
  (grad ? popgeo::isa::shifted_softplus_backward(grad, x, call->out, call->size)                     \
        : popgeo::isa::shifted_softplus(x, call->out, call->size))

EXPORT int64_t popgeo_shifted_softplus(const SoftplusCall* call) {
  popgeo::Aligned aligned;
  const float *grad = aligned(call->grad, call->size), *x = aligned(call->x, call->size);
  if (aligned.failed()) return popgeo::NO_MEMORY;
#ifdef POPGEO_HAS_V4
  if (popgeo::chosen_isa == 2) return POPGEO_RUN(v4), popgeo::OK;
#endif
#ifdef POPGEO_HAS_V3
  if (popgeo::chosen_isa >= 1) return POPGEO_RUN(v3), popgeo::OK;
#endif
  return POPGEO_RUN(baseline), popgeo::OK;
}
