// Runs native calls one after the other, as popgeo/engine/program/stretch.py puts them together.
#include <chrono>
#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace popgeo {

struct NativeCall {
  int64_t (*kernel)(const void* words);  // returns 0 if it has computed its results
  const void* words;
};

// A word of some call that follows a source: the number of threads, or the address of an input.
struct MovingWord {
  int64_t* word;
  int64_t source, offset;
};

struct Stretch {
  const NativeCall* calls;
  int64_t num_calls;
  const MovingWord* moving;
  int64_t num_moving;
  const int64_t* sources;
  int64_t longest;  // nanoseconds after which it returns, so that the caller can stop; 0: no limit
};

inline int64_t nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace popgeo

// Runs the calls from `first` on. Returns 0 at the end; -1 - i if call i declined, which the caller must replace; or i > 0
// if the time is over and call i comes next.
EXPORT int64_t popgeo_run(const popgeo::Stretch* stretch, int64_t first) {
  if (!first)
    for (int64_t i = 0; i < stretch->num_moving; ++i) {
      const popgeo::MovingWord& moving = stretch->moving[i];
      *moving.word = stretch->sources[moving.source] + moving.offset;
    }
  const int64_t start = stretch->longest ? popgeo::nanoseconds() : 0;
  for (int64_t i = first; i < stretch->num_calls; ++i) {
    if (i > first && stretch->longest && popgeo::nanoseconds() - start > stretch->longest) return i;
    if (stretch->calls[i].kernel(stretch->calls[i].words)) return -1 - i;
  }
  return 0;
}
