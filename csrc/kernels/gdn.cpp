// Gated delta net: depthwise convolution, gates, the delta rule on each head's state, gated norm. See gdn.h for the layout.
#include "gdn.h"

#include "lanes_math.h"

namespace jubako::JUBAKO_ISA {
namespace {

#ifdef __AVX512F__
constexpr int COLUMNS = 4;  // vectors of state columns worked on together
#else
constexpr int COLUMNS = 2;
#endif

// Causal depthwise convolution and silu for `count` channels from `channel` on.
void convolve(const GdnCall& c, int token, int channel, int count, float* out) {
    const float* rows[GDN_MAX_KERNEL];
    const int past = c.kernel - 1;
    for (int tap = 0; tap < c.kernel; ++tap) {
        const int source = token - past + tap;
        rows[tap] = source >= 0 ? c.qkv + size_t(source) * c.channels
                                : c.conv_past + size_t((c.position + c.kernel * past + source) % past) * c.channels;
    }
    for (int i = 0; i < count; i += LANES) {
        Lanes acc = load(rows[0] + channel + i) * load(c.conv + channel + i);
        for (int tap = 1; tap < c.kernel; ++tap) {
            acc = fma(load(rows[tap] + channel + i), load(c.conv + size_t(tap) * c.channels + channel + i), acc);
        }
        store(out + i, silu(acc));
    }
}

// x * scale / sqrt(sum of squares + eps)
void normalise(float* x, int count, float eps, float scale) {
    const float factor = scale / __builtin_sqrtf(sum_of_squares(x, count) + eps);
    for (int i = 0; i < count; i += LANES) store(x + i, load(x + i) * splat(factor));
}

// One step of the delta rule on N vectors of columns: `state` points at row 0, rows are `dim` apart.
// Even and odd rows are summed apart to keep the multipliers busy.
template <int N>
void delta_rule(float* state, int dim, const float* q, const float* k, const float* v, float decay, float beta, float* out) {
    Lanes even[N], odd[N];
    for (int n = 0; n < N; ++n) even[n] = odd[n] = zero();
    for (int i = 0; i < dim; i += 2) {
        const float* row = state + size_t(i) * dim;
        const Lanes k0 = splat(k[i]), k1 = splat(k[i + 1]);
        for (int n = 0; n < N; ++n) {
            even[n] = fma(load(row + n * LANES), k0, even[n]);
            odd[n] = fma(load(row + dim + n * LANES), k1, odd[n]);
        }
    }
    Lanes u[N];
    const Lanes decays = splat(decay);
    for (int n = 0; n < N; ++n) {
        const Lanes recalled = decays * (even[n] + odd[n]);
        u[n] = splat(beta) * (load(v + n * LANES) - recalled);
        even[n] = odd[n] = zero();
    }
    for (int i = 0; i < dim; i += 2) {
        float* row = state + size_t(i) * dim;
        const Lanes k0 = splat(k[i]), k1 = splat(k[i + 1]), q0 = splat(q[i]), q1 = splat(q[i + 1]);
        for (int n = 0; n < N; ++n) {
            const Lanes a = fma(k0, u[n], decays * load(row + n * LANES));
            const Lanes b = fma(k1, u[n], decays * load(row + dim + n * LANES));
            store(row + n * LANES, a);
            store(row + dim + n * LANES, b);
            even[n] = fma(a, q0, even[n]);
            odd[n] = fma(b, q1, odd[n]);
        }
    }
    for (int n = 0; n < N; ++n) store(out + n * LANES, even[n] + odd[n]);
}

}  // namespace

// Tokens go in blocks, and a block goes through one tile of columns after the other, so that the tile stays in the
// nearest cache meanwhile. Columns of the state do not depend on each other.
void gdn_head(const GdnCall& c, int head) {
    constexpr int BLOCK = 16;
    const int dim = c.dim;
    const int key_head = head % c.key_heads;
    alignas(64) float q[BLOCK][GDN_MAX_DIM], k[BLOCK][GDN_MAX_DIM], v[BLOCK][GDN_MAX_DIM], o[BLOCK][GDN_MAX_DIM];
    float beta[BLOCK], decay[BLOCK];
    float* state = c.state + size_t(head) * dim * dim;
    for (int first = 0; first < c.tokens; first += BLOCK) {
        const int count = c.tokens - first < BLOCK ? c.tokens - first : BLOCK;
        for (int t = 0; t < count; ++t) {
            convolve(c, first + t, key_head * dim, dim, q[t]);
            convolve(c, first + t, (c.key_heads + key_head) * dim, dim, k[t]);
            convolve(c, first + t, (2 * c.key_heads + head) * dim, dim, v[t]);
            normalise(q[t], dim, GDN_NORM_EPS, 1.0f / __builtin_sqrtf(float(dim)));
            normalise(k[t], dim, GDN_NORM_EPS, 1.0f);
            const size_t gate = size_t(first + t) * c.value_heads + head;
            beta[t] = sigmoid(c.beta[gate]);
            decay[t] = exp(c.a[head] * softplus(c.alpha[gate] + c.dt_bias[head]));
        }
        int column = 0;
        for (; column + COLUMNS * LANES <= dim; column += COLUMNS * LANES) {
            for (int t = 0; t < count; ++t) {
                delta_rule<COLUMNS>(state + column, dim, q[t], k[t], v[t] + column, decay[t], beta[t], o[t] + column);
            }
        }
        for (; column < dim; column += LANES) {
            for (int t = 0; t < count; ++t) {
                delta_rule<1>(state + column, dim, q[t], k[t], v[t] + column, decay[t], beta[t], o[t] + column);
            }
        }
        for (int t = 0; t < count; ++t) {
            const float scale = 1.0f / __builtin_sqrtf(sum_of_squares(o[t], dim) / float(dim) + c.eps);
            const size_t place = (size_t(first + t) * c.value_heads + head) * dim;
            for (int i = 0; i < dim; i += LANES) {
                const Lanes normed = load(o[t] + i) * splat(scale) * load(c.norm + i);
                store(c.out + place + i, normed * sigmoid(load(c.z + place + i)));
            }
        }
    }
}

}  // namespace jubako::JUBAKO_ISA
