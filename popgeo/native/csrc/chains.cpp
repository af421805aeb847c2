// Runs chains of element-wise operations, block by block: each instruction is one loop over a block that is in cache.
// The file is compiled once per instruction set (see setup.py), like kernels.cpp; run_chain.cpp picks among them.
#if defined(__GNUC__) && !defined(__clang__)
// Without this, before all functions, GCC keeps selections as branches.
#pragma GCC optimize("no-trapping-math")
#define POPGEO_VECTORISE _Pragma("GCC ivdep")
#else
#define POPGEO_VECTORISE _Pragma("clang loop vectorize(assume_safety)")
#endif

#include "chain.h"
#include "chain_math.h"
#include "denormals.h"

namespace popgeo {
namespace POPGEO_ISA {
namespace chain {

// Operands may be the memory of the result itself, element by element, which is no dependence between elements.
using Loop = void (*)(float* out, const float* a, const float* b, const float* c, int64_t size);

enum Form : int64_t { VECTORS = 0, LAST_SCALAR = 1, FIRST_SCALAR = 2 };

template <class F>
void unary(float* out, const float* a, const float*, const float*, int64_t size) {
  POPGEO_VECTORISE
  for (int64_t i = 0; i < size; ++i) out[i] = F::of(a[i]);
}

template <class F>
void binary(float* out, const float* a, const float* b, const float*, int64_t size) {
  POPGEO_VECTORISE
  for (int64_t i = 0; i < size; ++i) out[i] = F::of(a[i], b[i]);
}

template <class F>
void binary_with_scalar(float* out, const float* a, const float* b, const float*, int64_t size) {
  const float y = *b;
  POPGEO_VECTORISE
  for (int64_t i = 0; i < size; ++i) out[i] = F::of(a[i], y);
}

template <class F>
void scalar_with_binary(float* out, const float* a, const float* b, const float*, int64_t size) {
  const float x = *a;
  POPGEO_VECTORISE
  for (int64_t i = 0; i < size; ++i) out[i] = F::of(x, b[i]);
}

template <class F>
void ternary(float* out, const float* a, const float* b, const float* c, int64_t size) {
  POPGEO_VECTORISE
  for (int64_t i = 0; i < size; ++i) out[i] = F::of(a[i], b[i], c[i]);
}

template <class F>
void ternary_with_scalar(float* out, const float* a, const float* b, const float* c, int64_t size) {
  const float z = *c;
  POPGEO_VECTORISE
  for (int64_t i = 0; i < size; ++i) out[i] = F::of(a[i], b[i], z);
}

// Beyond LARGEST_ANGLE the mathematical library finds the phase, element by element.
template <int QUARTERS>
void trigonometric(float* out, const float* a, const float*, const float*, int64_t size) {
  int32_t num_large = 0;
  for (int64_t i = 0; i < size; ++i) num_large += absolute(a[i]) > LARGEST_ANGLE;
  if (num_large) {
    for (int64_t i = 0; i < size; ++i) {
      const float x = a[i], exact = QUARTERS ? __builtin_cosf(x) : __builtin_sinf(x);
      out[i] = absolute(x) > LARGEST_ANGLE ? exact : sine(x, QUARTERS);
    }
    return;
  }
  POPGEO_VECTORISE
  for (int64_t i = 0; i < size; ++i) out[i] = sine(a[i], QUARTERS);
}

struct Row {
  Loop loops[3];
};
template <class F>
constexpr Row one() {
  return {{unary<F>, nullptr, nullptr}};
}
template <class F>
constexpr Row two() {
  return {{binary<F>, binary_with_scalar<F>, scalar_with_binary<F>}};
}
template <class F>
constexpr Row three() {
  return {{ternary<F>, ternary_with_scalar<F>, nullptr}};
}

#define POPGEO_ONE(Name, expression) \
  struct Name { static POPGEO_INLINE float of(float x) { return expression; } }
#define POPGEO_TWO(Name, expression) \
  struct Name { static POPGEO_INLINE float of(float x, float y) { return expression; } }
#define POPGEO_THREE(Name, expression) \
  struct Name { static POPGEO_INLINE float of(float x, float y, float z) { return expression; } }

POPGEO_ONE(Copy, x);
POPGEO_ONE(Neg, -x);
POPGEO_ONE(Abs, absolute(x));
POPGEO_ONE(Sign, float(x > 0.0f) - float(x < 0.0f));
POPGEO_ONE(Not, x == 0.0f ? 1.0f : 0.0f);
POPGEO_ONE(Exp, exp(x));
POPGEO_ONE(Expm1, expm1(x));
POPGEO_ONE(Log, log(x));
POPGEO_ONE(Log1p, log1p(x));
POPGEO_ONE(Sqrt, sqrt(x));
POPGEO_ONE(Rsqrt, 1.0f / sqrt(x));
POPGEO_ONE(Reciprocal, 1.0f / x);
POPGEO_ONE(Tanh, tanh(x));
POPGEO_ONE(Sigmoid, sigmoid(x));
POPGEO_ONE(Silu, x / (1.0f + exp(-x)));
POPGEO_ONE(ShiftedSoftplus, shifted_softplus(x));
POPGEO_TWO(Add, x + y);
POPGEO_TWO(Sub, x - y);
POPGEO_TWO(Mul, x* y);
POPGEO_TWO(Div, x / y);
// NaN wins on either side.
POPGEO_TWO(Max, x > y || x != x ? x : y);
POPGEO_TWO(Min, x < y || x != x ? x : y);
POPGEO_TWO(Gt, x > y ? 1.0f : 0.0f);
POPGEO_TWO(Ge, x >= y ? 1.0f : 0.0f);
POPGEO_TWO(Lt, x < y ? 1.0f : 0.0f);
POPGEO_TWO(Le, x <= y ? 1.0f : 0.0f);
POPGEO_TWO(Eq, x == y ? 1.0f : 0.0f);
POPGEO_TWO(Ne, x != y ? 1.0f : 0.0f);
POPGEO_TWO(And, x != 0.0f && y != 0.0f ? 1.0f : 0.0f);
POPGEO_TWO(Or, x != 0.0f || y != 0.0f ? 1.0f : 0.0f);
POPGEO_TWO(ShiftedSoftplusBackward, shifted_softplus_backward(x, y));
POPGEO_TWO(SiluBackward, silu_backward(x, y));
POPGEO_TWO(SigmoidBackward, x*(1.0f - y) * y);
POPGEO_TWO(TanhBackward, x* fma(-y, y, 1.0f));
POPGEO_THREE(Where, x != 0.0f ? y : z);
POPGEO_THREE(Fma, fma(y, z, x));
POPGEO_THREE(Fnma, fma(-y, z, x));
POPGEO_THREE(Lerp, lerp(x, y, z));

// In the order of CODES in popgeo/engine/fuse/chain.py.
const Row TABLE[] = {
    one<Copy>(), one<Neg>(), one<Abs>(), one<Sign>(), one<Not>(), one<Exp>(), one<Expm1>(), one<Log>(), one<Log1p>(),
    one<Sqrt>(), one<Rsqrt>(), one<Reciprocal>(), one<Tanh>(), one<Sigmoid>(), one<Silu>(), {{trigonometric<0>}}, {{trigonometric<1>}},
    one<ShiftedSoftplus>(),
    two<Add>(), two<Sub>(), two<Mul>(), two<Div>(), two<Max>(), two<Min>(), two<Gt>(), two<Ge>(), two<Lt>(), two<Le>(),
    two<Eq>(), two<Ne>(), two<And>(), two<Or>(), two<ShiftedSoftplusBackward>(), two<SiluBackward>(),
    two<SigmoidBackward>(), two<TanhBackward>(),
    three<Where>(), three<Fma>(), three<Fnma>(), three<Lerp>(),
};
constexpr int64_t NUM_COMPUTED = sizeof(TABLE) / sizeof(TABLE[0]);
enum Code : int64_t {
  FILL = 100,
  LOAD_FLOAT,
  LOAD_BOOL,
  LOAD_INT64,
  LOAD_INT32,
  STORE_FLOAT,
  STORE_BOOL,
  SUM_ROWS,     // over the rows: one number a column; c says where in the chunk's partial sums
  SUM_COLUMNS,  // over the columns: one number a row
  SUM_ALL,
};

// A block: rows x columns elements, the first at (row, column).
struct Block {
  int64_t row, column, rows, columns;
  bool ends_row;
};

template <class T>
void load(float* out, const Slot& slot, const Block& block) {
  for (int64_t r = 0; r < block.rows; ++r, out += block.columns) {
    const T* from = reinterpret_cast<const T*>(slot.base) + (block.row + r) * slot.row + block.column * slot.column;
    if (slot.column == 0) {
      const float value = float(*from);
      for (int64_t i = 0; i < block.columns; ++i) out[i] = value;
    } else if (slot.column == 1) {
      for (int64_t i = 0; i < block.columns; ++i) out[i] = float(from[i]);
    } else {
      for (int64_t i = 0; i < block.columns; ++i) out[i] = float(from[i * slot.column]);
    }
  }
}

POPGEO_INLINE void put(float* to, float value) { *to = value; }
POPGEO_INLINE void put(uint8_t* to, float value) { *to = value != 0.0f; }

template <class T>
void save(const float* in, const Slot& slot, const Block& block) {
  for (int64_t r = 0; r < block.rows; ++r, in += block.columns) {
    T* to = reinterpret_cast<T*>(slot.base) + (block.row + r) * slot.row + block.column * slot.column;
    if (slot.column == 1)
      for (int64_t i = 0; i < block.columns; ++i) put(to + i, in[i]);
    else
      for (int64_t i = 0; i < block.columns; ++i) put(to + i * slot.column, in[i]);
  }
}

// Sixteen numbers whatever the width of the processor's vectors, so that the order of a sum does not depend on it.
typedef float Sixteen __attribute__((vector_size(64)));

typedef float Eight __attribute__((vector_size(32)));
typedef float Four __attribute__((vector_size(16)));
typedef int32_t SixteenWords __attribute__((vector_size(64)));

// By reference, since a vector wider than the processor's has no agreed way to be returned.
POPGEO_INLINE void add_sixteen(Sixteen& sum, const float* in) {
  Sixteen next;
  memcpy(&next, in, sizeof(next));
  sum += next;
}

float sum_of(const float* in, int64_t size) {
  const SixteenWords lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  if (size < 16) {
    float total = 0.0f;
    for (int64_t i = 0; i < size; ++i) total += in[i];
    return total;
  }
  Sixteen parts = {};
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) add_sixteen(parts, in + i);
  // The last sixteen, without those that have been counted.
  Sixteen last = {};
  add_sixteen(last, in + size - 16);
  parts += lane >= int32_t(16 - (size - i)) ? last : Sixteen{};
  Eight eight[2];
  memcpy(eight, &parts, sizeof(parts));
  eight[0] += eight[1];
  Four four[2];
  memcpy(four, &eight[0], sizeof(four));
  four[0] += four[1];
  return (four[0][0] + four[0][2]) + (four[0][1] + four[0][3]);
}

// The rows of a block are summed as floats, blocks in double precision.
void add_to(double* total, const float* in, const Block& block) {
  total += block.column;
  int64_t i = 0;
  for (; i + 16 <= block.columns; i += 16) {
    Sixteen sum = {};
    for (int64_t r = 0; r < block.rows; ++r) add_sixteen(sum, in + r * block.columns + i);
    for (int lane = 0; lane < 16; ++lane) total[i + lane] += sum[lane];
  }
  for (; i < block.columns; ++i) {
    float sum = 0.0f;
    for (int64_t r = 0; r < block.rows; ++r) sum += in[r * block.columns + i];
    total[i] += sum;
  }
}

// Each row of the block, or of what the earlier blocks of the same row have left in `partial`.
void sum_columns(const float* in, const Slot& slot, const Block& block, double* partial) {
  for (int64_t r = 0; r < block.rows; ++r, in += block.columns) {
    const double total = (block.column ? *partial : 0.0) + sum_of(in, block.columns);
    *partial = total;
    if (block.ends_row) reinterpret_cast<float*>(slot.base)[(block.row + r) * slot.row] = float(total);
  }
}

// Between registers, so that they do not compete for the same lines of the cache.
constexpr int64_t GAP = 16;

struct Worker {
  const Chain& chain;
  double* partial;
  float (*registers)[BLOCK + GAP];

  void run(int64_t first, int64_t last, const Block& block) const {
    const int64_t size = block.rows * block.columns;
    auto at = [&](int64_t number) -> float* {
      const Slot& slot = chain.slots[number];
      if (slot.place == REGISTER) return registers[slot.row];
      const int64_t skipped = slot.place == DIRECT ? block.row * slot.row + block.column : 0;
      return reinterpret_cast<float*>(slot.base) + skipped;
    };
    for (const Instruction* it = chain.instructions + first; it < chain.instructions + last; ++it) {
      if (it->code < NUM_COMPUTED) {
        TABLE[it->code].loops[it->form](at(it->out), at(it->a), at(it->b), at(it->c), size);
        continue;
      }
      const Slot &from = chain.slots[it->a], &to = chain.slots[it->out];
      switch (it->code) {
        case FILL: fill(at(it->out), *at(it->a), size); break;
        case LOAD_FLOAT: load<float>(at(it->out), from, block); break;
        case LOAD_BOOL: load<uint8_t>(at(it->out), from, block); break;
        case LOAD_INT64: load<int64_t>(at(it->out), from, block); break;
        case LOAD_INT32: load<int32_t>(at(it->out), from, block); break;
        case STORE_FLOAT: save<float>(at(it->a), to, block); break;
        case STORE_BOOL: save<uint8_t>(at(it->a), to, block); break;
        case SUM_ROWS: add_to(partial + it->c, at(it->a), block); break;
        case SUM_COLUMNS: sum_columns(at(it->a), to, block, partial + it->c); break;
        case SUM_ALL: partial[it->c] += sum_of(at(it->a), size); break;
      }
    }
  }

  static void fill(float* out, float value, int64_t size) {
    for (int64_t i = 0; i < size; ++i) out[i] = value;
  }
};

void run_chunk(const Chain& chain, int64_t chunk, int64_t num_units, int64_t parts) {
  alignas(64) float registers[MAX_REGISTERS][BLOCK + GAP];
  double* partial = chain.partial + chunk * chain.partial_size;
  for (int64_t i = 0; i < chain.partial_size; ++i) partial[i] = 0.0;
  const Worker worker{chain, partial, registers};
  const int64_t begin = chunk * num_units / chain.num_chunks, end = (chunk + 1) * num_units / chain.num_chunks;
  if (begin == end) return;
  worker.run(0, chain.num_invariant, {0, 0, chain.block_rows, chain.block_columns, true});
  for (int64_t unit = begin; unit < end; ++unit) {
    // A unit is a block, or, where a row of several blocks is summed, the row.
    const int64_t first = chain.sums_columns ? unit * parts : unit;
    const int64_t last = chain.sums_columns ? first + parts : first + 1;
    for (int64_t number = first; number < last; ++number) {
      const int64_t row = number / parts * chain.block_rows, column = number % parts * chain.block_columns;
      const int64_t rows = chain.num_rows - row, columns = chain.num_columns - column;
      const bool ends = columns <= chain.block_columns;
      worker.run(chain.num_invariant, chain.num_instructions,
                 {row, column, rows < chain.block_rows ? rows : chain.block_rows, ends ? columns : chain.block_columns, ends});
    }
  }
}

// The sums of all chunks, in their order.
void finish(const Chain& chain) {
  for (int64_t i = chain.num_invariant; i < chain.num_instructions; ++i) {
    const Instruction& it = chain.instructions[i];
    if (it.code != SUM_ROWS && it.code != SUM_ALL) continue;
    const Slot& to = chain.slots[it.out];
    const int64_t size = it.code == SUM_ROWS ? chain.num_columns : 1;
    for (int64_t k = 0; k < size; ++k) {
      double total = 0.0;
      for (int64_t chunk = 0; chunk < chain.num_chunks; ++chunk) total += chain.partial[chunk * chain.partial_size + it.c + k];
      reinterpret_cast<float*>(to.base)[k * to.column] = float(total);
    }
  }
}

}  // namespace chain

int64_t run_chain(const Chain& chain) {
  const int64_t parts = (chain.num_columns + chain.block_columns - 1) / chain.block_columns;
  const int64_t row_blocks = (chain.num_rows + chain.block_rows - 1) / chain.block_rows;
  const int64_t num_units = chain.sums_columns ? row_blocks : row_blocks * parts;
  const uint64_t of_caller = denormals();
#ifdef _OPENMP
#pragma omp parallel if (chain.num_chunks > 1)
#endif
  {
    const Denormals same(of_caller);
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
    for (int64_t chunk = 0; chunk < chain.num_chunks; ++chunk) chain::run_chunk(chain, chunk, num_units, parts);
  }
  chain::finish(chain);
  return 0;
}

}  // namespace POPGEO_ISA
}  // namespace popgeo
