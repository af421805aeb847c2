// The C function of products of matrices, by the newest instruction set that the processor has.
#include "products.h"

#include "kernels.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace popgeo {

extern int64_t chosen_isa;

using Multiply = void (*)(const MatrixProduct&);

#ifdef POPGEO_HAS_V3
namespace v3 {
void multiply(const MatrixProduct&);
}
#endif
#ifdef POPGEO_HAS_V4
namespace v4 {
void multiply(const MatrixProduct&);
}
#endif

// Null if torch is faster: on processors without fused multiply-adds, and on unknown processors.
static Multiply multiply() {
#ifdef POPGEO_HAS_V4
  if (chosen_isa == 2) return v4::multiply;
#endif
#ifdef POPGEO_HAS_V3
  if (chosen_isa >= 1) return v3::multiply;
#endif
  return nullptr;
}

}  // namespace popgeo

// Returns whether products run here.
EXPORT int64_t popgeo_multiplies() { return popgeo::multiply() != nullptr; }

EXPORT int64_t popgeo_multiply(const popgeo::MatrixProduct* product) {
  const popgeo::Multiply multiply = popgeo::multiply();
  if (!multiply) return popgeo::BAD_INPUT;
  multiply(*product);
  return popgeo::OK;
}
