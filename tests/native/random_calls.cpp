// Calls the functions of a compiled library with random input and prints one line for each call: what it was, and a sum
// of all bits that it wrote. The same lines from two processors mean the same bits; fuzz_aarch64.py compares them.
//
//     random_calls LIBRARY FIRST END [THREADS]
//
// With THREADS that many threads make all of these calls at the same time, each in an order of its own, and a call whose
// line is not the same in all of them is an error: what a thread sanitizer looks on (check_threads.py).
//
// Call number i is the same wherever it runs: its input comes from integers alone, and no random number is drawn in an
// argument beside another one, since compilers differ in which they draw first.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "chain.h"
#include "interaction.h"
#include "random_arrays.h"

namespace {

using namespace popgeo;

void* library;

template <class Result, class... Arguments>
Result call(const char* name, Arguments... arguments) {
  auto* function = reinterpret_cast<Result (*)(Arguments...)>(dlsym(library, name));
  if (!function) {
    fprintf(stderr, "the library has no %s\n", name);
    exit(2);
  }
  return function(arguments...);
}

using Packed = std::vector<int64_t>;  // a structure of numbers of 64 bits

int64_t address(const void* data) { return int64_t(reinterpret_cast<intptr_t>(data)); }

thread_local char what[400];

#define SAY(...) snprintf(what, sizeof(what), __VA_ARGS__)

// Calls ---------------------------------------------------------------------------------------------------------------

struct Edges {
  int64_t num_edges = one_of({0, 1, 7, 100, 999}), num_sources = 1 + below(40), num_rows = 1 + below(40);
  int64_t channels = one_of({1, 3, 4, 8, 13, 16, 33, 52, 64, 100, 128, 200}), num_threads = one_of({1, 1, 2, 3});
  Array &src = index(num_edges, num_sources), &dst = index(num_edges, num_rows);
};

// A plan, or none; the call makes its own then.
struct Plan {
  const void *rowptr = nullptr, *perm = nullptr;
  int64_t num_tiles = 0;
  Plan(Array& index, int64_t num_rows) {
    if (chance(40)) return;
    Array &starts = make(INT32, num_rows + 1), &order = make(INT32, index.count);
    int32_t head[2] = {};
    const Packed packed = {address(index.data()), address(starts.data()), address(order.data()), address(head),
                           index.count, num_rows};
    const int64_t status = call<int64_t>("popgeo_plan", packed.data());
    add_bits(uint64_t(status) << 1 | uint64_t(head[0]));
    if (status) return;
    rowptr = starts.data(), perm = head[0] ? nullptr : order.data(), num_tiles = one_of({0, 1, 3, 20});
    written.push_back(&starts);
    if (perm) written.push_back(&order);
  }
};

int64_t scatter_sum() {
  Edges e;
  Plan plan(e.dst, e.num_rows);
  const int64_t dtype = below(6);
  Array &src = values(dtype, e.num_edges * e.channels, 9, chance(30)), &sums = out(dtype, e.num_rows * e.channels);
  const Packed packed = {dtype, address(src.data()), address(e.dst.data()), address(plan.rowptr), address(plan.perm),
                         address(sums.data()), e.num_edges, e.num_rows, e.channels, plan.num_tiles, e.num_threads};
  SAY("scatter_sum dtype %d edges %d rows %d channels %d plan %d", int(dtype), int(e.num_edges), int(e.num_rows),
      int(e.channels), plan.rowptr != nullptr);
  return call<int64_t>("popgeo_scatter_sum", packed.data());
}

int64_t scatter_extremum() {
  Edges e;
  Plan plan(e.dst, e.num_rows);
  const int64_t dtype = below(6), largest = below(2), count = e.num_rows * e.channels;
  Array& src = values(dtype, e.num_edges * e.channels, 9, chance(50));
  Array &extremes = out(dtype, count), &winners = out(INT64, count);
  SAY("scatter_extremum dtype %d edges %d rows %d channels %d", int(dtype), int(e.num_edges), int(e.num_rows),
      int(e.channels));
  const Packed packed = {largest, dtype, address(src.data()), address(e.dst.data()), address(plan.rowptr),
                         address(plan.perm), address(extremes.data()), address(winners.data()), e.num_edges, e.num_rows,
                         e.channels, plan.num_tiles, e.num_threads};
  return call<int64_t>("popgeo_scatter_extremum", packed.data());
}

int64_t cfconv(bool is_backward) {
  Edges e;
  const int64_t dtype = below(4);
  const bool wild = chance(20);
  Array &x = values(dtype, e.num_sources * e.channels, 9, wild), &w = values(dtype, e.num_edges * e.channels, 9, wild);
  Plan plan(is_backward ? e.src : e.dst, is_backward ? e.num_sources : e.num_rows);
  Packed packed = {dtype};
  if (is_backward) packed.push_back(address(values(dtype, e.num_rows * e.channels).data()));
  for (Array* array : {&x, &w, &e.src, &e.dst}) packed.push_back(address(array->data()));
  packed.insert(packed.end(), {address(plan.rowptr), address(plan.perm)});
  packed.push_back(address(out(dtype, (is_backward ? e.num_sources : e.num_rows) * e.channels).data()));
  if (is_backward) packed.push_back(address(out(dtype, e.num_edges * e.channels).data()));
  packed.insert(packed.end(), {e.num_edges, e.num_sources, e.num_rows, e.channels, plan.num_tiles, e.num_threads});
  SAY("cfconv%s dtype %d edges %d channels %d", is_backward ? "_backward" : "", int(dtype), int(e.num_edges),
      int(e.channels));
  return call<int64_t>(is_backward ? "popgeo_cfconv_backward" : "popgeo_cfconv", packed.data());
}

int64_t shifted_softplus() {
  const int64_t count = one_of({0, 1, 5, 33, 1000, 200000});
  const int64_t is_double = below(2), dtype = is_double ? FLOAT64 : FLOAT32;
  Array &x = values(dtype, count, float(one_of({1, 30, 100, 1000})), true), &grad = values(dtype, count);
  SAY("shifted_softplus %d double %d", int(count), int(is_double));
  for (const void* above : {(const void*)nullptr, (const void*)grad.data()}) {
    const Packed packed = {is_double, address(above), address(x.data()), address(out(dtype, count).data()), count};
    if (const int64_t status = call<int64_t>("popgeo_shifted_softplus", packed.data())) return status;
  }
  return 0;
}

int64_t interaction() {
  Edges e;
  InteractionCall given = {};
  const bool has_vectors = chance(40), backward = chance(60);
  const int64_t num_points = one_of({11, 40, 257}), filters = e.channels * (has_vectors ? 3 : 1);
  const int64_t features = e.channels * (has_vectors ? 5 : 1), results = e.channels * (has_vectors ? 4 : 1);
  given.is_double = below(2), given.table_is_double = given.is_double || chance(50);
  const int64_t dtype = given.is_double ? FLOAT64 : FLOAT32, table_dtype = given.table_is_double ? FLOAT64 : FLOAT32;
  Array& distances = values(dtype, e.num_edges, 5, chance(5));
  if (chance(30)) e.num_sources = e.num_rows = e.num_sources > e.num_rows ? e.num_sources : e.num_rows;
  const double cutoff = 4;
  int64_t bits;
  memcpy(&bits, &cutoff, sizeof(bits));
  const InteractionPlan parts{e.num_edges, num_points};
  Array &plan = make(INT32, parts.size()), &weights = make(dtype, e.num_edges * POINTS);
  SAY("interaction%s edges %d channels %d points %d vectors %d double %d", backward ? " backward" : "",
      int(e.num_edges), int(e.channels), int(num_points), has_vectors, int(given.is_double));
  const Packed to_plan = {address(e.src.data()), address(e.dst.data()), address(distances.data()), address(plan.data()),
                          address(weights.data()), e.num_edges, e.num_sources, e.num_rows, num_points,
                          given.is_double, bits};
  if (const int64_t status = call<int64_t>("popgeo_interaction_plan", to_plan.data())) return status;
  given.plan = plan.data<int32_t>(), given.weights = weights.data();
  given.table = values(table_dtype, num_points * filters, 1).data();
  given.x = values(dtype, e.num_sources * features, 2).data();
  given.direction = has_vectors ? values(dtype, e.num_edges * 3, 1).data() : nullptr;
  given.num_edges = e.num_edges, given.num_sources = e.num_sources, given.num_rows = e.num_rows;
  given.num_points = num_points, given.channels = e.channels, given.num_threads = e.num_threads;
  given.half_list = e.num_sources == e.num_rows && chance(50), given.spacing = cutoff / double(num_points - 1);
  given.out = out(dtype, e.num_rows * results).data();
  const auto run = [&] {
    given.workspace = make(INT8, call<int64_t>("popgeo_interaction_workspace", &given)).data();
    return call<int64_t>("popgeo_interaction", &given);
  };
  if (const int64_t status = run()) return status;
  if (!backward) return 0;
  given.grad = values(dtype, e.num_rows * results, 2).data();
  given.out = chance(70) ? out(dtype, e.num_sources * features).data() : nullptr;
  given.grad_table = chance(70) ? out(table_dtype, num_points * filters).data() : nullptr;
  given.grad_r = chance(70) ? out(dtype, e.num_edges).data() : nullptr;
  given.grad_direction = has_vectors && chance(70) ? out(dtype, e.num_edges * 3).data() : nullptr;
  if (const int64_t status = run()) return status;
  given.is_second = 1;
  given.along_x = chance(70) ? values(dtype, e.num_sources * features, 2).data() : nullptr;
  given.along_r = chance(70) ? values(dtype, e.num_edges, 2).data() : nullptr;
  given.along_direction = has_vectors && chance(70) ? values(dtype, e.num_edges * 3, 2).data() : nullptr;
  given.grad_grad = chance(70) ? out(dtype, e.num_rows * results).data() : nullptr;
  return run();
}

// Each instruction of a chain reads what was given or what an earlier one made, and writes to an array of its own.
int64_t chain() {
  constexpr int64_t NUM_UNARY = 18, NUM_BINARY = 18, NUM_TERNARY = 4, FILL = 100, LOAD = 101, STORE = 105, SUM = 107;
  const int64_t rows = one_of({1, 2, 30, 200}), columns = one_of({1, 3, 16, 50, 700, 1500}), size = rows * columns;
  std::vector<Slot> slots;
  std::vector<Instruction> instructions;
  std::vector<int64_t> vectors, codes;
  const auto slot = [&](int64_t place, Array& array, int64_t row, int64_t column) {
    slots.push_back({place, array.data<char>(), row, column});
    return int64_t(slots.size()) - 1;
  };
  const auto result = [&] {
    vectors.push_back(slot(DIRECT, out(FLOAT32, size), columns, 1));
    return vectors.back();
  };
  const auto any = [&] { return vectors[size_t(below(int64_t(vectors.size())))]; };
  for (const float limit : {1.0f, 10.0f, 100.0f})
    vectors.push_back(slot(DIRECT, values(FLOAT32, size, limit, true), columns, 1));
  const int64_t scalar = slot(SCALAR, values(FLOAT32, 1, 3, true), 0, 0);
  const DType types[] = {FLOAT32, INT8, INT64, INT32};
  for (int64_t type = 0; type < 4; ++type) {
    const int64_t step = one_of({1, 2}), row = chance(30) ? 0 : step * columns, column = chance(20) ? 0 : step;
    Array& from = values(types[type], step * size);
    const int64_t read = slot(STRIDED, from, row, column);
    instructions.push_back({LOAD + type, 0, result(), read, 0, 0});
  }
  instructions.push_back({FILL, 0, result(), scalar, 0, 0});
  for (int64_t count = 4 + below(8); count > 0; --count) {
    const int64_t code = below(NUM_UNARY + NUM_BINARY + NUM_TERNARY);
    const int64_t operands = code < NUM_UNARY ? 1 : code < NUM_UNARY + NUM_BINARY ? 2 : 3;
    const int64_t form = operands == 1 ? 0 : below(operands == 2 ? 3 : 2);
    int64_t from[3] = {any(), any(), any()};
    if (form) from[form == 2 ? 0 : operands - 1] = scalar;
    instructions.push_back({code, form, result(), from[0], from[1], from[2]});
    codes.push_back(code);
  }
  instructions.push_back({STORE, 0, slot(STRIDED, out(FLOAT32, 2 * size), 2 * columns, 2), any(), 0, 0});
  instructions.push_back({STORE + 1, 0, slot(STRIDED, out(INT8, size), columns, 1), any(), 0, 0});
  const bool sums_columns = chance(50);
  instructions.push_back({SUM, 0, slot(STRIDED, out(FLOAT32, columns), 0, 1), any(), 0, 0});
  instructions.push_back({SUM + 2, 0, slot(STRIDED, out(FLOAT32, 1), 0, 0), any(), 0, columns});
  if (sums_columns) instructions.push_back({SUM + 1, 0, slot(STRIDED, out(FLOAT32, rows), 1, 0), any(), 0, columns + 1});
  Chain given = {};
  given.slots = slots.data(), given.instructions = instructions.data();
  given.num_slots = int64_t(slots.size()), given.num_instructions = int64_t(instructions.size());
  given.num_rows = rows, given.num_columns = columns, given.sums_columns = sums_columns;
  given.block_rows = columns > BLOCK ? 1 : rows < BLOCK / columns ? rows : BLOCK / columns;
  given.block_columns = columns > BLOCK ? BLOCK : columns;
  given.num_chunks = 1 + below(3), given.partial_size = columns + 2;
  given.partial = make(FLOAT64, given.num_chunks * given.partial_size).data<double>();
  int length = SAY("chain %d x %d codes", int(rows), int(columns));
  for (const int64_t code : codes) length += snprintf(what + length, sizeof(what) - size_t(length), " %d", int(code));
  return call<int64_t>("popgeo_chain", &given);
}

int64_t packing() {
  const int64_t count = 1 + below(500), dims = 1 + below(3), limits[] = {90, 200, 300}, num_graphs = 1 + below(12);
  Array &ids = out(INT64, count), &sizes = make(INT64, count * dims);
  Array &ptr = make(INT64, count + 2), &used = make(INT64, dims);
  memset(ids.data(), 0, size_t(count) * 8);
  for (int64_t i = 0; i < count * dims; ++i) sizes.data<int64_t>()[i] = 1 + below(limits[i % dims] / 3);
  call<void>("popgeo_shuffle", ids.data<int64_t>(), int64_t(0), count, count, next());
  add_bits(uint64_t(call<int64_t>("popgeo_next_fit", sizes.data(), count, int(dims), limits, num_graphs, used.data(),
                                  ptr.data())));
  const int open = int(1 + below(64));
  void* window = call<void*>("popgeo_window_new", int(dims), limits, num_graphs, open, next());
  const int64_t packs = call<int64_t>("popgeo_window_push", window, ids.data(), sizes.data(), count, 1);
  const int64_t held = call<int64_t>("popgeo_window_num_ids", window);
  Array &packed = out(INT64, held), &starts = out(INT64, packs + 1);
  call<void>("popgeo_window_read", window, packed.data(), starts.data());
  call<void>("popgeo_window_free", window);
  SAY("packing %d graphs %d packs", int(count), int(packs));
  return packs;
}

int64_t run(int64_t kind) {
  switch (kind) {
    case 0: return scatter_sum();
    case 1: return scatter_extremum();
    case 2: return cfconv(false);
    case 3: return cfconv(true);
    case 4: return shifted_softplus();
    case 5: return interaction();
    case 6: return chain();
    default: return packing();
  }
}

std::string line_of(int64_t number) {
  state = uint64_t(number) * 0xD1B54A32D192ED03ULL;
  const bool flushes = chance(25);
  sum_of_bits = 0;
  arrays.clear();
  written.clear();
  const int64_t before = call<int64_t>("popgeo_set_denormals", int64_t(flushes ? -1 : 0), int64_t(3));
  const int64_t status = run(number % 8);
  call<int64_t>("popgeo_set_denormals", before, int64_t(3));
  if (status != 1 || number % 8 == 7)
    for (Array* array : written)
      for (int64_t i = 0; i < array->count; ++i) add_bits(bits_at(*array, i));
  char line[600];
  snprintf(line, sizeof(line), "%lld %s%s: status %lld, bits %016llx", static_cast<long long>(number), what,
           flushes ? ", flushed" : "", static_cast<long long>(status), static_cast<unsigned long long>(sum_of_bits));
  return line;
}

}  // namespace

int main(int count, char** arguments) {
  library = count > 3 ? dlopen(arguments[1], RTLD_NOW) : nullptr;
  if (!library) {
    fprintf(stderr, "%s\n", count > 3 ? dlerror() : "random_calls LIBRARY FIRST END [THREADS]");
    return 2;
  }
  const int64_t first = atoll(arguments[2]), calls = atoll(arguments[3]) - first;
  const size_t num_threads = count > 4 ? size_t(atoll(arguments[4])) : 1;
  std::vector<std::vector<std::string>> lines(num_threads, std::vector<std::string>(size_t(calls)));
  const auto work = [&](size_t thread) {
    for (int64_t i = 0; i < calls; ++i) {
      const int64_t place = (i + int64_t(thread)) % calls;
      lines[thread][size_t(place)] = line_of(first + place);
    }
  };
  std::vector<std::thread> others;
  for (size_t thread = 1; thread < num_threads; ++thread) others.emplace_back(work, thread);
  work(0);
  for (std::thread& other : others) other.join();
  bool same = true;
  for (size_t thread = 0; thread < num_threads; ++thread) same &= lines[thread] == lines[0];
  for (const std::string& line : lines[0]) puts(line.c_str());
  if (!same) fprintf(stderr, "threads that called at the same time had other results\n");
  return same ? 0 : 1;
}
