// The C function of products of matrices, by the newest instruction set that the processor has.
#include "products.h"

#include "kernels.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

#define POPGEO_DECLARE(isa) \
  namespace isa {           \
  void multiply(const MatrixProduct&); \
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

EXPORT int64_t popgeo_multiply(const popgeo::MatrixProduct* product) {
#ifdef POPGEO_HAS_V4
  if (popgeo::chosen_isa == 2) {
    popgeo::v4::multiply(*product);
    return popgeo::OK;
  }
#endif
#ifdef POPGEO_HAS_V3
  if (popgeo::chosen_isa >= 1) {
    popgeo::v3::multiply(*product);
    return popgeo::OK;
  }
#endif
  popgeo::baseline::multiply(*product);
  return popgeo::OK;
}
