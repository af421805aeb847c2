// Calls operations of torch through its stable C functions, which Python passes by address, so that this library needs no
// part of torch. Torch's own kernels run, so results have torch's bits. See popgeo/engine/program/lower_torch_ops.py.
#include <cstdint>
#include <cstring>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "kernels.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

// Where a result is copied, and its form there.
struct Place {
  void* address;
  int64_t bytes, numel, type;
};

struct TorchCall {
  int32_t (*call)(const char* name, const char* overload, uint64_t* stack, uint64_t version);
  int32_t (*new_tensor)(void* tensor, void** same);
  int32_t (*delete_tensor)(void* tensor);
  int32_t (*data_of)(void* tensor, void** data);
  int32_t (*is_contiguous)(void* tensor, bool* answer);
  int32_t (*numel_of)(void* tensor, int64_t* numel);
  int32_t (*type_of)(void* tensor, int32_t* type);
  int32_t (*new_list)(size_t size, void** list);
  int32_t (*append)(void* list, uint64_t item);
  const char *name, *overload;
  const int64_t* arguments;  // one after another, each a kind and what it needs
  const Place* results;      // 0 bytes if nothing is to be copied there
  int64_t num_arguments, num_results, is_serial;
};

namespace {

enum Kind : int64_t { NUMBER = 0, TENSOR = 1, SOME = 2, LIST = 3 };
constexpr uint64_t VERSION = uint64_t(2) << 56 | uint64_t(10) << 48;  // of the conventions: torch 2.10
constexpr int64_t MOST = 64;  // arguments or results

// Makes the value of an argument, which the call takes over; `next` moves past the argument.
bool make(const TorchCall& call, const int64_t*& next, uint64_t& value) {
  const int64_t kind = *next++;
  if (kind == NUMBER) {
    value = uint64_t(*next++);
    return true;
  }
  if (kind == SOME) {
    uint64_t inner;
    if (!make(call, next, inner)) return false;
    value = reinterpret_cast<uint64_t>(new uint64_t(inner));
    return true;
  }
  void* made;
  if (kind == TENSOR) {
    if (call.new_tensor(reinterpret_cast<void*>(*next++), &made)) return false;
  } else {
    const int64_t size = *next++;
    if (call.new_list(size_t(size), &made)) return false;
    for (int64_t i = 0; i < size; ++i) {
      uint64_t item;
      if (!make(call, next, item) || call.append(made, item)) return false;
    }
  }
  value = reinterpret_cast<uint64_t>(made);
  return true;
}

// Lets torch use one thread as long as the object exists.
class OneThread {
 public:
  explicit OneThread(bool is_wanted) : before_(is_wanted ? most_threads() : 1) { set(before_ > 1 ? 1 : 0); }
  ~OneThread() { set(before_ > 1 ? before_ : 0); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  static int most_threads() {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
  }
  static void set([[maybe_unused]] int count) {
#ifdef _OPENMP
    if (count) omp_set_num_threads(count);
#endif
  }
  const int before_;
};

}  // namespace

// Returns BAD_INPUT if torch raised an error, or if a result has another form than its place.
EXPORT int64_t popgeo_call_torch(const TorchCall* packed) {
  const TorchCall& call = *packed;
  uint64_t stack[MOST];
  if (call.num_arguments > MOST || call.num_results > MOST) return popgeo::BAD_INPUT;
  const int64_t* next = call.arguments;
  for (int64_t i = 0; i < call.num_arguments; ++i)
    if (!make(call, next, stack[i])) return popgeo::BAD_INPUT;
  const OneThread serial(call.is_serial != 0);
  if (call.call(call.name, call.overload, stack, VERSION)) return popgeo::BAD_INPUT;
  int64_t status = popgeo::OK;
  for (int64_t i = 0; i < call.num_results; ++i) {
    const Place& place = call.results[i];
    void *made = reinterpret_cast<void*>(stack[i]), *data;
    if (place.bytes) {
      bool is_contiguous = false;
      int64_t numel = 0;
      int32_t type = 0;
      if (call.data_of(made, &data) || call.is_contiguous(made, &is_contiguous) || !is_contiguous ||
          call.numel_of(made, &numel) || call.type_of(made, &type) || numel != place.numel || type != place.type)
        status = popgeo::BAD_INPUT;
      else
        memcpy(place.address, data, size_t(place.bytes));
    }
    call.delete_tensor(made);
  }
  return status;
}
