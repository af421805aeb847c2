// The C functions of products of small matrices, by the newest instruction set that the processor has.
#include "matrix_product.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace popgeo {

extern int64_t chosen_isa;

#ifdef POPGEO_HAS_V3
namespace v3 {
void matrix_product(const MatrixProduct& call);
}
#endif
#ifdef POPGEO_HAS_V4
namespace v4 {
void matrix_product(const MatrixProduct& call);
}
#endif

using Product = void (*)(const MatrixProduct&);

// None without fused multiply-adds, since no other arithmetic has their bits.
inline Product product_of_isa() {
#ifdef POPGEO_HAS_V4
  if (chosen_isa == 2) return v4::matrix_product;
#endif
#ifdef POPGEO_HAS_V3
  if (chosen_isa >= 1) return v3::matrix_product;
#endif
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return POPGEO_ISA::matrix_product;
#else
  return nullptr;
#endif
}

}  // namespace popgeo

EXPORT int64_t popgeo_matrix_product_is_served() { return popgeo::product_of_isa() != nullptr; }

EXPORT int64_t popgeo_matrix_product_workspace(const popgeo::MatrixProduct* call) {
  return popgeo::matrix_product_workspace(*call);
}

EXPORT int64_t popgeo_matrix_product(const popgeo::MatrixProduct* call) {
  popgeo::product_of_isa()(*call);
  return 0;
}
