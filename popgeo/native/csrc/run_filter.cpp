// The C functions of the filter network's tail, by the newest instruction set that the processor has.
#include <cstdint>

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

EXPORT void popgeo_shifted_softplus(const float* x, float* y, int64_t size) {
#ifdef POPGEO_HAS_V4
  if (popgeo::chosen_isa == 2) return popgeo::v4::shifted_softplus(x, y, size);
#endif
#ifdef POPGEO_HAS_V3
  if (popgeo::chosen_isa >= 1) return popgeo::v3::shifted_softplus(x, y, size);
#endif
  popgeo::baseline::shifted_softplus(x, y, size);
}

EXPORT void popgeo_shifted_softplus_backward(const float* grad, const float* x, float* out, int64_t size) {
#ifdef POPGEO_HAS_V4
  if (popgeo::chosen_isa == 2) return popgeo::v4::shifted_softplus_backward(grad, x, out, size);
#endif
#ifdef POPGEO_HAS_V3
  if (popgeo::chosen_isa >= 1) return popgeo::v3::shifted_softplus_backward(grad, x, out, size);
#endif
  popgeo::baseline::shifted_softplus_backward(grad, x, out, size);
}
