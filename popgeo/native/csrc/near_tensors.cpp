// Compares tensors with their earlier values, in one call. See popgeo/ops/near_tensors.py.
#include <cstdint>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Tensor {
  const void *now, *before;
  int64_t bytes, type;  // FLOAT or DOUBLE; bytes of any other type must be equal
  double limit;         // of the 2-norm of the difference
};

enum Type : int64_t { FLOAT = 1, DOUBLE = 2 };

template <typename T>
bool is_near(const Tensor& given) {
  constexpr int64_t LANES = 16;
  const T *now = static_cast<const T*>(given.now), *before = static_cast<const T*>(given.before);
  const int64_t size = given.bytes / int64_t(sizeof(T)), whole = size / LANES * LANES;
  T sums[LANES] = {};
  const auto add = [&](int64_t i, int64_t lane) { sums[lane] += (now[i] - before[i]) * (now[i] - before[i]); };
  for (int64_t i = 0; i < whole; i += LANES)
    for (int64_t lane = 0; lane < LANES; ++lane) add(i + lane, lane);
  for (int64_t i = whole; i < size; ++i) add(i, i - whole);
  double sum = 0.0;
  for (const T lane : sums) sum += double(lane);
  return !(sum > given.limit * given.limit);  // true for NaN
}

}  // namespace

// Returns whether each tensor is as near to its earlier values as its limit.
EXPORT int64_t popgeo_are_near(const Tensor* tensors, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const Tensor& one = tensors[i];
    const bool is_equal = one.type != FLOAT && one.type != DOUBLE && !std::memcmp(one.now, one.before, size_t(one.bytes));
    if (!(one.type == FLOAT ? is_near<float>(one) : one.type == DOUBLE ? is_near<double>(one) : is_equal)) return 0;
  }
  return 1;
}
