// The C functions of searches among points, by the newest instruction set that the processor has.
#include <memory>
#include <new>

#include "kernels.h"
#include "point_search.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace popgeo {

extern int64_t chosen_isa;

namespace baseline {
extern const PointKernels point_kernels;
}
#ifdef POPGEO_HAS_V3
namespace v3 {
extern const PointKernels point_kernels;
}
#endif
#ifdef POPGEO_HAS_V4
namespace v4 {
extern const PointKernels point_kernels;
}
#endif

static const PointKernels& kernels_here() {
#ifdef POPGEO_HAS_V4
  if (chosen_isa == 2) return v4::point_kernels;
#endif
#ifdef POPGEO_HAS_V3
  if (chosen_isa >= 1) return v3::point_kernels;
#endif
  return baseline::point_kernels;
}

}  // namespace popgeo

// Keeps the pairs until `popgeo_take_points` copies them, because their number is the result of the search.
EXPORT int64_t popgeo_find_points(const popgeo::PointSearch* a) {
  try {
    auto found = std::make_unique<popgeo::FoundPoints>();
    popgeo::kernels_here().find(*a, *found);
    a->result[1] = 0;
    for (const auto& rows : found->rows) a->result[1] += static_cast<int64_t>(rows.size());
    a->result[0] = reinterpret_cast<int64_t>(found.release());
  } catch (const std::bad_alloc&) {
    return popgeo::NO_MEMORY;
  }
  return popgeo::OK;
}

struct TakenPoints {
  popgeo::FoundPoints* found;
  int64_t* out;  // centers and neighbors [2, num_pairs]
  int64_t num_pairs, first;
};

EXPORT int64_t popgeo_take_points(const TakenPoints* a) {
  const std::unique_ptr<popgeo::FoundPoints> found(a->found);
  int64_t *centers = a->out, *rows = a->out + a->num_pairs, center = a->first;
  for (size_t block = 0; block < found->counts.size(); ++block) {
    for (const int64_t count : found->counts[block])
      for (int64_t i = 0, own = center++; i < count; ++i) *centers++ = own;
    for (const int64_t row : found->rows[block]) *rows++ = row;
  }
  return popgeo::OK;
}

EXPORT int64_t popgeo_farthest_points(const popgeo::FarthestPoints* a) {
  try {
    popgeo::kernels_here().farthest(*a);
  } catch (const std::bad_alloc&) {
    return popgeo::NO_MEMORY;
  }
  return popgeo::OK;
}
