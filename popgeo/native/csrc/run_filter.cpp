// The C functions of the filter network's tail, by the newest instruction set that the processor has.
#include "aligned.h"
#include "kernels.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

#define POPGEO_DECLARE(isa)                                                        \
  namespace isa {                                                                  \
  template <class T>                                                               \
  void shifted_softplus(const T* grad, const T* x, T* out, int64_t size);          \
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
  int64_t is_double;
  const void *grad, *x;  // no grad: forward
  void* out;
  int64_t size;
};

namespace {

template <class T>
int64_t run(const SoftplusCall* call) {
  popgeo::Aligned aligned;
  const T* grad = aligned(static_cast<const T*>(call->grad), call->size);
  const T* x = aligned(static_cast<const T*>(call->x), call->size);
  T* out = static_cast<T*>(call->out);
  if (aligned.failed()) return popgeo::NO_MEMORY;
#ifdef POPGEO_HAS_V4
  if (popgeo::chosen_isa == 2) return popgeo::v4::shifted_softplus(grad, x, out, call->size), popgeo::OK;
#endif
#ifdef POPGEO_HAS_V3
  if (popgeo::chosen_isa >= 1) return popgeo::v3::shifted_softplus(grad, x, out, call->size), popgeo::OK;
#endif
  return popgeo::baseline::shifted_softplus(grad, x, out, call->size), popgeo::OK;
}

}  // namespace

EXPORT int64_t popgeo_shifted_softplus(const SoftplusCall* call) {
  return call->is_double ? run<double>(call) : run<float>(call);
}
