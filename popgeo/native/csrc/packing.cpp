// Packing: the compiled twins of shuffled.py, exact_fill.py and stream.py of popgeo/packing, equal to them bit for bit.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "random_numbers.h"

#define POPGEO_API extern "C" __attribute__((visibility("default")))

namespace {

using popgeo::hash32;

constexpr int kDraws = 32, kCandidates = 4, kCompletions = 4, kSteered = 8;  // as in exact_fill.py

// `Window` of exact_fill.py. Sums and products fit 64 bits; window.py checks this before it uses this class.
class Window {
 public:
  Window(int num_dims, const std::int64_t* limits, std::int64_t num_graphs, int window, std::uint64_t key)
      : dims_(num_dims), limits_(limits, limits + num_dims), num_graphs_(num_graphs), window_(window), key_(key),
        counts_(limits[0] + 1, 0), pending_(num_dims, 0), left_(limits_), graphs_left_(num_graphs) {}

  // Adds graphs to the window; the packs closed since the last call are then in `ids_out` and `ptr_out`.
  void push(const std::int64_t* ids, const std::int64_t* sizes, std::int64_t count, bool last) {
    source_ids_ = ids, source_ = sizes, source_left_ = count;
    ids_out.clear();
    ptr_out.assign(1, 0);
    while (refill(last)) {
      if (!draw() && !complete()) chosen_.clear();
      if (!chosen_.empty()) take();
      if (chosen_.empty() || graphs_left_ == 0) close();
    }
    if (last && !pack_.empty()) close();
  }

  std::vector<std::int64_t> ids_out, ptr_out;

 private:
  struct Option {  // first sizes that complete a pack: one (and -1) or two
    std::int64_t small, large, weight;
  };

  std::uint64_t next() { return hash32(key_, counter_++); }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(next() * static_cast<std::uint64_t>(n) >> 32); }
  const std::int64_t* size(int position) const { return &sizes_[static_cast<std::size_t>(position) * dims_]; }

  void close() {
    ids_out.insert(ids_out.end(), pack_.begin(), pack_.end());
    ptr_out.push_back(static_cast<std::int64_t>(ids_out.size()));
    pack_.clear();
    left_ = limits_;
    graphs_left_ = num_graphs_;
  }

  bool refill(bool last) {
    while (!holes_.empty() || static_cast<int>(ids_.size()) < window_) {
      if (source_left_ > 0) {
        int position = static_cast<int>(ids_.size());
        if (!holes_.empty()) position = holes_.back(), holes_.pop_back();
        add(position);
      } else if (!last) {
        return false;
      } else if (!holes_.empty()) {
        const int hole = holes_.back();
        holes_.pop_back();
        close_up(hole);
      } else {
        break;
      }
    }
    return !ids_.empty();
  }

  void add(int position) {
    const std::int64_t first = source_[0];
    if (position == static_cast<int>(ids_.size())) {
      ids_.push_back(0);
      firsts_.push_back(0);
      sizes_.resize(sizes_.size() + dims_);
    }
    ids_[position] = *source_ids_;
    firsts_[position] = static_cast<std::int32_t>(first);
    for (int d = 0; d < dims_; ++d) sizes_[static_cast<std::size_t>(position) * dims_ + d] = source_[d], pending_[d] += source_[d];
    if (counts_[first]++ == 0) present_.insert(std::lower_bound(present_.begin(), present_.end(), first), first);
    ++source_ids_, source_ += dims_, --source_left_;
  }

  void close_up(int hole) {
    const int back = static_cast<int>(ids_.size()) - 1;
    ids_[hole] = ids_[back], firsts_[hole] = firsts_[back];
    std::copy_n(size(back), dims_, &sizes_[static_cast<std::size_t>(hole) * dims_]);
    ids_.pop_back(), firsts_.pop_back(), sizes_.resize(sizes_.size() - dims_);
  }

  void take() {
    holes_ = chosen_;
    if (holes_.size() == 2 && holes_[0] > holes_[1]) std::swap(holes_[0], holes_[1]);
    for (const int position : holes_) {
      const std::int64_t* s = size(position);
      for (int d = 0; d < dims_; ++d) pending_[d] -= s[d], left_[d] -= s[d];
      if (--counts_[s[0]] == 0) present_.erase(std::lower_bound(present_.begin(), present_.end(), s[0]));
      pack_.push_back(ids_[position]);
    }
    graphs_left_ -= static_cast<std::int64_t>(holes_.size());
  }

  // Checks that one or two more graphs stay within the budget.
  bool fits(int p, int q = -1) const {
    for (int d = 0; d < dims_; ++d)
      if (size(p)[d] + (q < 0 ? 0 : size(q)[d]) > left_[d]) return false;
    return true;
  }

  // Returns the deviation of sizes from the window's proportion of the second to the first; 0 is in proportion.
  std::int64_t drift(const std::int64_t* s) const { return s[1] * pending_[0] - s[0] * pending_[1]; }

  std::int64_t drift_of_pack() const {
    return (limits_[1] - left_[1]) * pending_[0] - (limits_[0] - left_[0]) * pending_[1];
  }

  bool draw() {
    const auto count = static_cast<std::int64_t>(ids_.size());
    const std::int64_t room = 2 * left_[0] * count;
    if (!pack_.empty() && room <= 5 * pending_[0]) return false;
    const bool steer = dims_ > 1 && !pack_.empty() && room <= 2 * kSteered * pending_[0];
    const std::int64_t before = steer ? drift_of_pack() : 0;
    std::int64_t best_score = 0;
    int found = 0;
    for (int i = 0; i < kDraws && found < kCandidates; ++i) {
      const int position = static_cast<int>(below(count));
      if (!fits(position)) continue;
      const std::int64_t score = steer ? std::abs(before + drift(size(position))) : 0;
      if (!found || score < best_score) chosen_.assign(1, position), best_score = score;
      ++found;
      if (!steer) break;
    }
    return found > 0;
  }

  bool complete() {
    if (left_[0] < present_[0]) return false;
    find_options();
    std::int64_t total = 0;
    for (const Option& option : options_) total += option.weight;
    for (int i = 0; i < kCompletions; ++i) {
      auto ticket = static_cast<std::int64_t>(static_cast<unsigned __int128>(next()) * total >> 32);
      const Option* option = options_.data();
      while (ticket >= option->weight) ticket -= (option++)->weight;
      if (best(option->small, option->large)) return true;
    }
    chosen_.clear();
    for (int position = 0; position < static_cast<int>(ids_.size()); ++position)
      if ((chosen_.empty() || firsts_[position] > firsts_[chosen_[0]]) && fits(position)) chosen_.assign(1, position);
    return !chosen_.empty();
  }

  std::int64_t number(std::int64_t first) const { return counts_[first]; }

  void find_options() {
    options_.clear();
    const std::int64_t room = left_[0], largest = *(std::upper_bound(present_.begin(), present_.end(), room) - 1);
    const Option single{largest, -1, number(largest) * static_cast<std::int64_t>(ids_.size())};
    if (largest == room || graphs_left_ < 2) options_.push_back(single);
    if (graphs_left_ < 2) return;
    for (const std::int64_t small : present_) {
      if (2 * small > room) break;
      const std::int64_t num_small = number(small), num_large = number(room - small);
      const std::int64_t weight = 2 * small < room ? 2 * num_small * num_large : num_small * (num_small - 1);
      if (weight) options_.push_back({small, room - small, weight});
    }
    if (options_.empty()) find_closest(single);
  }

  void find_closest(const Option& single) {
    options_.push_back(single);
    std::int64_t best = single.small;
    int low = 0, high = static_cast<int>(std::upper_bound(present_.begin(), present_.end(), left_[0]) - present_.begin()) - 1;
    while (low <= high) {
      const std::int64_t small = present_[low], large = present_[high];
      if (small + large > left_[0]) {
        --high;
        continue;
      }
      const std::int64_t weight = low < high ? 2 * number(small) * number(large) : number(small) * (number(small) - 1);
      if (weight && small + large > best) best = small + large, options_.clear();
      if (weight && small + large == best) options_.push_back({small, large, weight});
      ++low;
    }
  }

  bool best(std::int64_t small, std::int64_t large) {
    const int candidates = dims_ > 1 ? kCandidates : 1;
    others_.clear();
    if (large < 0) {
      some(small, candidates, some_);
    } else if (small == large) {
      some(small, 2 * candidates, some_);
      const auto half = some_.begin() + static_cast<std::ptrdiff_t>(some_.size() / 2);
      others_.assign(half, some_.end());
      some_.erase(half, some_.end());
    } else {
      some(large, candidates, others_);
      some(small, candidates, some_);
    }
    if (others_.empty()) others_.push_back(-1);
    const std::int64_t before = dims_ > 1 ? drift_of_pack() : 0;
    std::int64_t best_score = 0;
    chosen_.clear();
    for (const int p : some_) {
      const std::int64_t with_p = dims_ > 1 ? before + drift(size(p)) : 0;
      for (const int q : others_) {
        if (!fits(p, q)) continue;
        const std::int64_t score = dims_ > 1 ? std::abs(with_p + (q < 0 ? 0 : drift(size(q)))) : 0;
        if (!chosen_.empty() && score >= best_score) continue;
        best_score = score;
        chosen_.assign(1, p);
        if (q >= 0) chosen_.push_back(q);
      }
    }
    return !chosen_.empty();
  }

  // The next few pending graphs of this first size, from a random position on.
  void some(std::int64_t first, int count, std::vector<int>& out) {
    const auto start = static_cast<std::ptrdiff_t>(below(static_cast<std::int64_t>(ids_.size())));
    out.clear();
    const auto search = [&](auto begin, auto end) {
      while (static_cast<int>(out.size()) < count) {
        begin = std::find(begin, end, static_cast<std::int32_t>(first));
        if (begin == end) return;
        out.push_back(static_cast<int>(begin++ - firsts_.begin()));
      }
    };
    search(firsts_.begin() + start, firsts_.end());
    search(firsts_.begin(), firsts_.begin() + start);
  }

  const int dims_;
  const std::vector<std::int64_t> limits_;
  const std::int64_t num_graphs_;
  const int window_;
  const std::uint64_t key_;
  std::uint64_t counter_ = 0;
  std::vector<std::int64_t> ids_, sizes_;
  std::vector<std::int32_t> firsts_;   // the first size once more, to be searched for
  std::vector<std::int64_t> counts_;   // first size -> how many graphs are pending
  std::vector<std::int64_t> present_, pending_, left_;
  std::int64_t graphs_left_;
  std::vector<int> holes_, chosen_, some_, others_;
  std::vector<std::int64_t> pack_;
  std::vector<Option> options_;
  const std::int64_t* source_ids_ = nullptr;
  const std::int64_t* source_ = nullptr;
  std::int64_t source_left_ = 0;
};

}  // namespace

// Steps start to end of the Fisher-Yates shuffle: place i of ids swaps with a random place from i on. A place from start on
// holds 1 more than its id, or 0 for its own number, so that nothing has to fill all places first.
POPGEO_API void popgeo_shuffle(std::int64_t* ids, std::int64_t start, std::int64_t end, std::int64_t total, std::uint64_t key) {
  constexpr std::int64_t kAhead = 16;  // places fetched early, since each is a cache miss on a large table
  std::int64_t places[kAhead];
  for (std::int64_t i = start; i < end + kAhead; ++i) {
    if (const std::int64_t done = i - kAhead; done >= start) {
      const std::int64_t place = places[i % kAhead], mine = ids[done] ? ids[done] - 1 : done;
      ids[done] = place == done ? mine : ids[place] ? ids[place] - 1 : place;
      if (place != done) ids[place] = mine + 1;
    }
    if (i >= end) continue;
    places[i % kAhead] = i + static_cast<std::int64_t>(hash32(key, i) * static_cast<std::uint64_t>(total - i) >> 32);
    __builtin_prefetch(&ids[places[i % kAhead]], 1);
  }
}

// Next fit: writes the end of each pack, after ptr[0] = 0; returns the number of packs. ptr holds count + 1 numbers.
POPGEO_API std::int64_t popgeo_next_fit(const std::int64_t* sizes, std::int64_t count, int num_dims, const std::int64_t* limits,
                                        std::int64_t num_graphs, std::int64_t* used, std::int64_t* ptr) {
  std::int64_t num_packs = 0;
  ptr[0] = 0;
  std::fill_n(used, num_dims, 0);
  for (std::int64_t i = 0; i < count; ++i, sizes += num_dims) {
    bool fits = i - ptr[num_packs] < num_graphs;
    for (int d = 0; d < num_dims; ++d) fits &= sizes[d] <= limits[d] - used[d];
    if (!fits) {
      ptr[++num_packs] = i;
      std::fill_n(used, num_dims, 0);
    }
    for (int d = 0; d < num_dims; ++d) used[d] += sizes[d];
  }
  if (count > 0) ptr[++num_packs] = count;
  return num_packs;
}

// Returns a window, or null if there is no memory for it. Free it with popgeo_window_free.
POPGEO_API void* popgeo_window_new(int num_dims, const std::int64_t* limits, std::int64_t num_graphs, int window, std::uint64_t key) {
  try {
    return new Window(num_dims, limits, num_graphs, window, key);
  } catch (...) {
    return nullptr;
  }
}

POPGEO_API void popgeo_window_free(void* window) { delete static_cast<Window*>(window); }

// Adds graphs; returns the number of closed packs, or -1 if memory ran out.
POPGEO_API std::int64_t popgeo_window_push(void* window, const std::int64_t* ids, const std::int64_t* sizes, std::int64_t count, int last) {
  try {
    auto* self = static_cast<Window*>(window);
    self->push(ids, sizes, count, last != 0);
    return static_cast<std::int64_t>(self->ptr_out.size()) - 1;
  } catch (...) {
    return -1;
  }
}

// Copies the packs of the last push: num_packs + 1 offsets, and the ids; the last offset is their number.
POPGEO_API std::int64_t popgeo_window_num_ids(const void* window) { return static_cast<const Window*>(window)->ptr_out.back(); }

POPGEO_API void popgeo_window_read(const void* window, std::int64_t* ids, std::int64_t* ptr) {
  const auto* self = static_cast<const Window*>(window);
  std::copy(self->ids_out.begin(), self->ids_out.end(), ids);
  std::copy(self->ptr_out.begin(), self->ptr_out.end(), ptr);
}
