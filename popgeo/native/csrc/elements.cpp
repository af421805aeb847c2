// Operations by element on operands of any layout and type. Each block of rows and columns is read into a row of numbers
// of one type, unless it lies so in memory; one loop computes a result from them, which is then written to its place.
#include "vectorise.h"  // first

#include <cstring>

#include "denormals.h"
#include "plain.h"

namespace popgeo {
namespace POPGEO_ISA {
namespace elements {

constexpr int64_t BLOCK = 512;            // elements; four blocks of doubles fit in the nearest cache
constexpr int64_t FOR_THREADS = 1 << 18;  // smaller operations run in one thread

using Loop = void (*)(void* out, const void* a, const void* b, const void* c, int64_t size);

// Integers wrap around, which C++ defines only for unsigned numbers.
template <class C> struct Wrapping { using type = C; };
template <> struct Wrapping<int64_t> { using type = uint64_t; };
template <> struct Wrapping<int32_t> { using type = uint32_t; };

template <class F, class C, class R>
void loop(void* to, const void* first, const void* second, const void* third, int64_t size) {
  R* out = static_cast<R*>(to);
  const C *a = static_cast<const C*>(first), *b = static_cast<const C*>(second), *c = static_cast<const C*>(third);
  POPGEO_VECTORISE
  for (int64_t i = 0; i < size; ++i) out[i] = R(F::template of<C>(a[i], b[i], c[i]));
}

// `x`, `y` and `z` are the operands; `w` gives a number the type in which integers wrap around.
#define POPGEO_ELEMENT(Name, expression)                               \
  struct Name {                                                        \
    template <class C>                                                 \
    static inline auto of(C x, [[maybe_unused]] C y, [[maybe_unused]] C z) { return expression; } \
  }
template <class C>
inline typename Wrapping<C>::type w(C x) { return typename Wrapping<C>::type(x); }

inline float root(float x) { return __builtin_sqrtf(x); }
inline double root(double x) { return __builtin_sqrt(x); }
inline float magnitude(float x) { return __builtin_fabsf(x); }
inline double magnitude(double x) { return __builtin_fabs(x); }
template <class C>
inline C magnitude(C x) { return x < 0 ? C(0 - typename Wrapping<C>::type(x)) : x; }
template <class C>
inline C negated(C x) { return C(0 - typename Wrapping<C>::type(x)); }
inline float negated(float x) { return -x; }
inline double negated(double x) { return -x; }
inline uint8_t inverted(uint8_t x) { return !x; }
template <class C>
inline C inverted(C x) { return C(~x); }
template <class C>
inline C at_least(C x, C least) { return x < least ? least : x; }
template <class C>
inline C at_most(C x, C most) { return most < x ? most : x; }

POPGEO_ELEMENT(Copy, x);
POPGEO_ELEMENT(Neg, negated(x));
POPGEO_ELEMENT(Abs, magnitude(x));
POPGEO_ELEMENT(Sign, C((C(0) < x) - (x < C(0))));
POPGEO_ELEMENT(Square, C(w(x) * w(x)));
POPGEO_ELEMENT(Cube, C(w(x) * w(x) * w(x)));
POPGEO_ELEMENT(Rsqrt, C(1) / root(x));
POPGEO_ELEMENT(Reciprocal, C(1) / x);
POPGEO_ELEMENT(Not, inverted(x));
POPGEO_ELEMENT(Add, C(w(x) + w(y)));
POPGEO_ELEMENT(Sub, C(w(x) - w(y)));
POPGEO_ELEMENT(Mul, C(w(x) * w(y)));
POPGEO_ELEMENT(Div, x / y);
POPGEO_ELEMENT(Max, x > y || x != x ? x : y);
POPGEO_ELEMENT(Min, x < y || x != x ? x : y);
POPGEO_ELEMENT(And, C(x & y));
POPGEO_ELEMENT(Or, C(x | y));
POPGEO_ELEMENT(Xor, C(x ^ y));
POPGEO_ELEMENT(AtLeast, at_least(x, y));
POPGEO_ELEMENT(AtMost, at_most(x, y));
POPGEO_ELEMENT(Clamp, at_most(at_least(x, y), z));
POPGEO_ELEMENT(AddTimes, C(w(x) + w(y) * w(z)));
POPGEO_ELEMENT(Threshold, x <= y ? z : x);
POPGEO_ELEMENT(ThresholdBackward, x <= y ? C(0) : z);
POPGEO_ELEMENT(Where, x != C(0) ? y : z);
POPGEO_ELEMENT(Eq, x == y);
POPGEO_ELEMENT(Ne, x != y);
POPGEO_ELEMENT(Lt, x < y);
POPGEO_ELEMENT(Le, x <= y);
POPGEO_ELEMENT(Gt, x > y);
POPGEO_ELEMENT(Ge, x >= y);

constexpr int64_t COPY = 0, FIRST_COMPARISON = 25, NUM_CODES = 31;

// In the order of CODES in popgeo/engine/program/lower_elements.py.
#define POPGEO_COMPARISONS(C)                                                                                     \
  loop<Eq, C, uint8_t>, loop<Ne, C, uint8_t>, loop<Lt, C, uint8_t>, loop<Le, C, uint8_t>, loop<Gt, C, uint8_t>, \
      loop<Ge, C, uint8_t>
template <class C>
struct OfFloats {
  static constexpr Loop table[NUM_CODES] = {
      loop<Copy, C, C>, loop<Neg, C, C>, loop<Abs, C, C>, loop<Sign, C, C>, loop<Square, C, C>, loop<Cube, C, C>,
      loop<Rsqrt, C, C>, loop<Reciprocal, C, C>, nullptr, loop<Add, C, C>, loop<Sub, C, C>,
      loop<Mul, C, C>, loop<Div, C, C>, loop<Max, C, C>, loop<Min, C, C>, nullptr, nullptr, nullptr, loop<AtLeast, C, C>,
      loop<AtMost, C, C>, loop<Clamp, C, C>, nullptr, loop<Threshold, C, C>, loop<ThresholdBackward, C, C>,
      loop<Where, C, C>, POPGEO_COMPARISONS(C)};
};
template <class C>
struct OfIntegers {
  static constexpr Loop table[NUM_CODES] = {
      loop<Copy, C, C>, loop<Neg, C, C>, loop<Abs, C, C>, loop<Sign, C, C>, loop<Square, C, C>, loop<Cube, C, C>,
      nullptr, nullptr, loop<Not, C, C>, loop<Add, C, C>, loop<Sub, C, C>,
      loop<Mul, C, C>, nullptr, loop<Max, C, C>, loop<Min, C, C>, loop<And, C, C>, loop<Or, C, C>, loop<Xor, C, C>,
      loop<AtLeast, C, C>, loop<AtMost, C, C>, loop<Clamp, C, C>, loop<AddTimes, C, C>, loop<Threshold, C, C>,
      loop<ThresholdBackward, C, C>, loop<Where, C, C>, POPGEO_COMPARISONS(C)};
};

Loop loop_of(int64_t type, int64_t code) {
  switch (type) {
    case FLOAT: return OfFloats<float>::table[code];
    case DOUBLE: return OfFloats<double>::table[code];
    case INT64: return OfIntegers<int64_t>::table[code];
    case INT32: return OfIntegers<int32_t>::table[code];
    default: return OfIntegers<uint8_t>::table[code];  // BOOL is a byte that is 0 or 1
  }
}

// How one type becomes another: C++ as torch, but a bool is whether a number is not 0.
struct Truth {
  template <class R, class T>
  static inline R of(T x) { return x != T(0); }
};
struct Cast {
  template <class R, class T>
  static inline R of(T x) { return R(x); }
};

// Rows and columns of a block, and the steps of its elements on both sides.
struct Block {
  int64_t rows, columns, row, column, to_row, to_column;
};

template <class Convert, class R, class T>
void convert(void* to, const void* from, const Block& block) {
  for (int64_t r = 0; r < block.rows; ++r) {
    R* out = static_cast<R*>(to) + r * block.to_row;
    const T* in = static_cast<const T*>(from) + r * block.row;
    if (block.to_column != 1) {
      for (int64_t i = 0; i < block.columns; ++i) out[i * block.to_column] = Convert::template of<R, T>(in[i * block.column]);
    } else if (block.column == 1) {
      POPGEO_VECTORISE
      for (int64_t i = 0; i < block.columns; ++i) out[i] = Convert::template of<R, T>(in[i]);
    } else if (block.column == 0) {
      const R value = Convert::template of<R, T>(*in);
      for (int64_t i = 0; i < block.columns; ++i) out[i] = value;
    } else {
      for (int64_t i = 0; i < block.columns; ++i) out[i] = Convert::template of<R, T>(in[i * block.column]);
    }
  }
}

template <class Convert, class R>
void convert_from(int64_t from_type, void* to, const void* from, const Block& block) {
  switch (from_type) {
    case FLOAT: return convert<Convert, R, float>(to, from, block);
    case DOUBLE: return convert<Convert, R, double>(to, from, block);
    case INT64: return convert<Convert, R, int64_t>(to, from, block);
    case INT32: return convert<Convert, R, int32_t>(to, from, block);
    default: return convert<Convert, R, uint8_t>(to, from, block);
  }
}

void move(int64_t to_type, void* to, int64_t from_type, const void* from, const Block& block) {
  switch (to_type) {
    case FLOAT: return convert_from<Cast, float>(from_type, to, from, block);
    case DOUBLE: return convert_from<Cast, double>(from_type, to, from, block);
    case INT64: return convert_from<Cast, int64_t>(from_type, to, from, block);
    case INT32: return convert_from<Cast, int32_t>(from_type, to, from, block);
    case BOOL: return convert_from<Truth, uint8_t>(from_type, to, from, block);
    case BYTE: return convert<Cast, uint8_t, uint8_t>(to, from, block);
    default: return convert<Cast, uint16_t, uint16_t>(to, from, block);
  }
}

// The blocks of an operation: all blocks of the two innermost dimensions, for each place in the outer dimensions.
struct Blocks {
  int64_t sizes[NUM_DIMS], steps[NUM_DIMS], count = 1;  // sizes of the operation, and of a block in each dimension
  explicit Blocks(const Elements& op) {
    const Strided& first = op.operands[0];
    // Narrow blocks of a transposed operand use each line of the cache while they have it.
    const int64_t most = first.steps[NUM_DIMS - 2] == 1 && first.steps[NUM_DIMS - 1] > 1 ? 32 : BLOCK;
    for (int d = 0; d < NUM_DIMS; ++d) sizes[d] = op.sizes[d], steps[d] = 1;
    const int64_t columns = steps[NUM_DIMS - 1] = sizes[NUM_DIMS - 1] < most ? sizes[NUM_DIMS - 1] : most;
    steps[NUM_DIMS - 2] = sizes[NUM_DIMS - 2] < BLOCK / columns ? sizes[NUM_DIMS - 2] : BLOCK / columns;
    for (int d = 0; d < NUM_DIMS; ++d) count *= along(d);
  }
  int64_t along(int d) const { return (sizes[d] + steps[d] - 1) / steps[d]; }
  void find(int64_t number, int64_t* at) const {
    for (int d = NUM_DIMS - 1; d >= 0; --d) at[d] = number % along(d) * steps[d], number /= along(d);
  }
  void advance(int64_t* at) const {
    for (int d = NUM_DIMS - 1; d >= 0; --d) {
      if ((at[d] += steps[d]) < sizes[d]) return;
      at[d] = 0;
    }
  }
};

struct Worker {
  const Elements& op;
  const Blocks& blocks;
  Loop compute;
  int64_t result_type;
  bool is_read[3] = {false, false, false};  // operands of one element, which one read serves
  double memory[4][BLOCK];

  Worker(const Elements& op, const Blocks& blocks, Loop compute, int64_t result_type)
      : op(op), blocks(blocks), compute(compute), result_type(result_type) {}

  static bool is_row(const Strided& of, const Block& block) {
    return of.steps[NUM_DIMS - 1] == 1 && (block.rows == 1 || of.steps[NUM_DIMS - 2] == block.columns);
  }

  const void* read(int k, const int64_t* at, Block block) {
    const Strided& of = op.operands[k];
    const char* from = element(of, at);
    bool is_one = true;
    for (int d = 0; d < NUM_DIMS; ++d) is_one &= of.steps[d] == 0;
    if (of.type == op.type && is_row(of, block)) return from;
    if (is_read[k]) return memory[k];
    is_read[k] = is_one;
    if (is_one) block = {1, blocks.steps[NUM_DIMS - 2] * blocks.steps[NUM_DIMS - 1], 0, 0, 0, 1};
    else block.row = of.steps[NUM_DIMS - 2], block.column = of.steps[NUM_DIMS - 1];
    move(op.type, memory[k], of.type, from, block);
    return memory[k];
  }

  void run(int64_t begin, int64_t end) {
    int64_t at[NUM_DIMS];
    blocks.find(begin, at);
    for (int64_t number = begin; number < end; ++number, blocks.advance(at)) run_block(at);
  }

  void run_block(const int64_t* at) {
    const int64_t rows = op.sizes[NUM_DIMS - 2] - at[NUM_DIMS - 2], columns = op.sizes[NUM_DIMS - 1] - at[NUM_DIMS - 1];
    const int64_t most_rows = blocks.steps[NUM_DIMS - 2], most_columns = blocks.steps[NUM_DIMS - 1];
    Block block{rows < most_rows ? rows : most_rows, columns < most_columns ? columns : most_columns, 0, 0, 0, 1};
    block.to_row = block.columns;
    char* to = element(op.out, at);
    const int64_t to_row = op.out.steps[NUM_DIMS - 2], to_column = op.out.steps[NUM_DIMS - 1];
    if (op.code == COPY) {
      const Strided& of = op.operands[0];
      block.row = of.steps[NUM_DIMS - 2], block.column = of.steps[NUM_DIMS - 1];
      block.to_row = to_row, block.to_column = to_column;
      return move(op.out.type, to, of.type, element(of, at), block);
    }
    const void* operands[3] = {read(0, at, block)};
    for (int k = 1; k < 3; ++k) operands[k] = k < op.num_operands ? read(k, at, block) : operands[0];
    const bool is_direct = op.out.type == result_type && is_row(op.out, block);
    void* result = is_direct ? static_cast<void*>(to) : memory[3];
    compute(result, operands[0], operands[1], operands[2], block.rows * block.columns);
    if (!is_direct) move(op.out.type, to, result_type, result, {block.rows, block.columns, block.columns, 1, to_row, to_column});
  }
};

}  // namespace elements

// Returns 1 without a result if an address is not aligned or if the type has no such operation.
int64_t run_elements(const Elements* operations, int64_t count) {
  using namespace elements;
  for (int64_t i = 0; i < count; ++i) {
    const Elements& op = operations[i];
    bool fits = is_aligned(op.out) && (op.code == COPY || loop_of(op.type, op.code));
    for (int64_t k = 0; k < op.num_operands; ++k) fits &= is_aligned(op.operands[k]);
    if (!fits) return 1;
  }
  const uint64_t of_caller = denormals();
  for (int64_t i = 0; i < count; ++i) {
    const Elements& op = operations[i];
    int64_t numel = 1;
    for (int d = 0; d < NUM_DIMS; ++d) numel *= op.sizes[d];
    if (!numel) continue;
    const Blocks blocks(op);
    const Loop compute = op.code == COPY ? nullptr : loop_of(op.type, op.code);
    const int64_t result_type = op.code >= FIRST_COMPARISON ? int64_t(BOOL) : op.type;
    if (numel <= FOR_THREADS) {
      Worker(op, blocks, compute, result_type).run(0, blocks.count);
      continue;
    }
    const int64_t shares = (numel + FOR_THREADS / 4 - 1) / (FOR_THREADS / 4);
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
    for (int64_t k = 0; k < shares; ++k) {
      const Denormals same(of_caller);
      Worker(op, blocks, compute, result_type).run(k * blocks.count / shares, (k + 1) * blocks.count / shares);
    }
  }
  return 0;
}

}  // namespace POPGEO_ISA
}  // namespace popgeo
