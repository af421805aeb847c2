// The elementwise tail of SchNet's filter network: shifted softplus, forward and backward, in one pass each.
// Written so that the compiler vectorises it: no calls, no branches.

#include <cstdint>
#include <cstring>

#include "denormals.h"

#if defined(__GNUC__) && !defined(__clang__)
// Without these GCC keeps the selections below as branches, and multiplications apart from additions.
#pragma GCC optimize("no-trapping-math", "fp-contract=fast")
#endif

#define POPGEO_EXPORT extern "C" __attribute__((visibility("default")))

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
#define POPGEO_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define POPGEO_CLONES
#endif

namespace {

constexpr int64_t kParallelSize = 1 << 16;
constexpr float kLeast = -60.0f;  // as popgeo/ops/exp_or_zero.py

// e^x for x <= 0, relative error below 2e-7; 0 below -60, so that neither it nor a gradient times it is denormal.
inline __attribute__((always_inline)) float exp_of_negative(float x) {
    // Adding 1.5 * 2^23 rounds to the nearest integer, which then stands in the low bits.
    constexpr float kRound = 12582912.0f;
    float clamped = x < kLeast ? kLeast : x;
    float shifted = clamped * 1.44269504088896341f + kRound;
    float n = shifted - kRound;
    // ln 2 in two parts, so that the remainder keeps its last bits.
    float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
    // Both polynomials are summed in pairs (Estrin): short chains let the processor overlap iterations.
    float r2 = r * r;
    float high = (r * (1.0f / 5040) + 1.0f / 720) * r2 + (r * (1.0f / 120) + 1.0f / 24);
    float low = (r * (1.0f / 6) + 0.5f) * r2 + (r + 1.0f);
    float p = high * (r2 * r2) + low;
    int32_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3f800000;  // 2^n: the magic number's own bits fall off at the top
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return x <= kLeast ? 0.0f : p * scale;
}

// ln((1 + t) / 2) = 2 artanh((t - 1) / (t + 3)) for 0 <= t <= 1: exactly 0 at 1.
inline __attribute__((always_inline)) float log_of_mean_with_one(float t) {
    float s = (t - 1.0f) / (t + 3.0f);
    float q = s * s;  // at most 1/9
    float q2 = q * q;
    float high = (q * (1.0f / 15) + 1.0f / 13) * q2 + (q * (1.0f / 11) + 1.0f / 9);
    float low = (q * (1.0f / 7) + 1.0f / 5) * q2 + (q * (1.0f / 3) + 1.0f);
    float p = high * (q2 * q2) + low;
    return 2.0f * s * p;
}

POPGEO_CLONES void forward(const float* __restrict x, float* __restrict y, int64_t size) {
    for (int64_t i = 0; i < size; ++i) {
        float magnitude = x[i] < 0.0f ? -x[i] : x[i];
        float positive = x[i] > 0.0f ? x[i] : 0.0f;
        y[i] = positive + log_of_mean_with_one(exp_of_negative(-magnitude));
    }
}

POPGEO_CLONES void backward(const float* __restrict grad, const float* __restrict x, float* __restrict out, int64_t size) {
    for (int64_t i = 0; i < size; ++i) {
        float magnitude = x[i] < 0.0f ? -x[i] : x[i];
        float t = exp_of_negative(-magnitude);
        out[i] = grad[i] * (x[i] < 0.0f ? t : 1.0f) / (1.0f + t);
    }
}

template <class Body>
void in_parts(int64_t size, Body body) {
    const uint64_t of_caller = popgeo::POPGEO_ISA::denormals();
#ifdef _OPENMP
#pragma omp parallel if (size >= 2 * kParallelSize)
#endif
    {
        const popgeo::POPGEO_ISA::Denormals same(of_caller);
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
        for (int64_t start = 0; start < size; start += kParallelSize) {
            body(start, size - start < kParallelSize ? size - start : kParallelSize);
        }
    }
}

}  // namespace

POPGEO_EXPORT void popgeo_shifted_softplus(const float* x, float* y, int64_t size) {
    in_parts(size, [=](int64_t start, int64_t count) { forward(x + start, y + start, count); });
}

POPGEO_EXPORT void popgeo_shifted_softplus_backward(const float* grad, const float* x, float* out, int64_t size) {
    in_parts(size, [=](int64_t start, int64_t count) { backward(grad + start, x + start, out + start, count); });
}
