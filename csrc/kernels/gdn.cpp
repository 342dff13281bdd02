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
                                : c.conv_past + size_t((c.position + c.ring + source) % c.ring) * c.channels;
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

// One step of the delta rule on N vectors of columns: `state` points at row 0, rows are `stride` apart. u may be null.
// Even and odd rows are summed apart to keep the multipliers busy.
template <int N>
void delta_rule(float* state, int stride, int dim, const float* q, const float* k, const float* v, float decay, float beta,
                float* out, float* u_out) {
    Lanes even[N], odd[N];
    for (int n = 0; n < N; ++n) even[n] = odd[n] = zero();
    for (int i = 0; i < dim; i += 2) {
        const float* row = state + size_t(i) * stride;
        const Lanes k0 = splat(k[i]), k1 = splat(k[i + 1]);
        for (int n = 0; n < N; ++n) {
            even[n] = fma(load(row + n * LANES), k0, even[n]);
            odd[n] = fma(load(row + stride + n * LANES), k1, odd[n]);
        }
    }
    Lanes u[N];
    const Lanes decays = splat(decay);
    for (int n = 0; n < N; ++n) {
        const Lanes recalled = decays * (even[n] + odd[n]);
        u[n] = splat(beta) * (load(v + n * LANES) - recalled);
        if (u_out != nullptr) store(u_out + n * LANES, u[n]);
        even[n] = odd[n] = zero();
    }
    for (int i = 0; i < dim; i += 2) {
        float* row = state + size_t(i) * stride;
        const Lanes k0 = splat(k[i]), k1 = splat(k[i + 1]), q0 = splat(q[i]), q1 = splat(q[i + 1]);
        for (int n = 0; n < N; ++n) {
            const Lanes a = fma(k0, u[n], decays * load(row + n * LANES));
            const Lanes b = fma(k1, u[n], decays * load(row + stride + n * LANES));
            store(row + n * LANES, a);
            store(row + stride + n * LANES, b);
            even[n] = fma(a, q0, even[n]);
            odd[n] = fma(b, q1, odd[n]);
        }
    }
    for (int n = 0; n < N; ++n) store(out + n * LANES, even[n] + odd[n]);
}

// What delta_rule did to the state for the accepted tokens, from their factors: the same operations on N vectors of columns
// from `column` on. Where `copy` is not null the result goes there too, rows N vectors apart.
template <int N>
void apply_accepted(const GdnCall& c, float* state, int head, int column, float* copy) {
    const int key_head = head % c.key_heads;
    for (int i = 0; i < c.dim; ++i) {
        float* row = state + size_t(i) * c.dim + column;
        Lanes s[N];
        for (int n = 0; n < N; ++n) s[n] = load(row + n * LANES);
        for (int t = 0; t < c.accepted; ++t) {
            const size_t place = size_t(t) * c.value_heads + head;
            const Lanes k = splat(c.accepted_k[(size_t(t) * c.key_heads + key_head) * c.dim + i]), decay = splat(c.decay[place]);
            const float* u = c.u + place * c.dim + column;
            for (int n = 0; n < N; ++n) s[n] = fma(k, load(u + n * LANES), decay * s[n]);
        }
        for (int n = 0; n < N; ++n) {
            if (c.accepted > 0) store(row + n * LANES, s[n]);
            if (copy != nullptr) store(copy + (size_t(i) * N + n) * LANES, s[n]);
        }
    }
}

// What a block of tokens brings to one head.
struct Block {
    static constexpr int SIZE = GDN_REVOCABLE;
    alignas(64) float q[SIZE][GDN_MAX_DIM], k[SIZE][GDN_MAX_DIM], v[SIZE][GDN_MAX_DIM], o[SIZE][GDN_MAX_DIM];
    float beta[SIZE], decay[SIZE];
};

// N vectors of the state's columns through a block of tokens. A revocable call works on a copy of the tile.
template <int N>
void run_tile(const GdnCall& c, Block& block, int count, bool first, float* state, int head, int column) {
    alignas(64) float copy[N * LANES * GDN_MAX_DIM];
    if (first && (c.accepted > 0 || c.revocable)) apply_accepted<N>(c, state, head, column, c.revocable ? copy : nullptr);
    float* tile = c.revocable ? copy : state + column;
    const int stride = c.revocable ? N * LANES : c.dim;
    for (int t = 0; t < count; ++t) {
        float* u = c.revocable ? c.u + (size_t(t) * c.value_heads + head) * c.dim + column : nullptr;
        delta_rule<N>(tile, stride, c.dim, block.q[t], block.k[t], block.v[t] + column, block.decay[t], block.beta[t],
                      block.o[t] + column, u);
    }
}

}  // namespace

// Tokens go in blocks, and a block goes through one tile of columns after the other, so that the tile stays in the
// nearest cache meanwhile. Columns of the state do not depend on each other.
void gdn_head(const GdnCall& c, int head) {
    const int dim = c.dim;
    const int key_head = head % c.key_heads;
    Block block;
    float* state = c.state + size_t(head) * dim * dim;
    for (int first = 0; first < c.tokens; first += Block::SIZE) {
        const int count = c.tokens - first < Block::SIZE ? c.tokens - first : Block::SIZE;
        for (int t = 0; t < count; ++t) {
            convolve(c, first + t, key_head * dim, dim, block.q[t]);
            convolve(c, first + t, (c.key_heads + key_head) * dim, dim, block.k[t]);
            convolve(c, first + t, (2 * c.key_heads + head) * dim, dim, block.v[t]);
            normalise(block.q[t], dim, GDN_NORM_EPS, 1.0f / __builtin_sqrtf(float(dim)));
            normalise(block.k[t], dim, GDN_NORM_EPS, 1.0f);
            const size_t gate = size_t(first + t) * c.value_heads + head;
            block.beta[t] = sigmoid(c.beta[gate]);
            block.decay[t] = exp(c.a[head] * softplus(c.alpha[gate] + c.dt_bias[head]));
        }
        int column = 0;
        for (; column + COLUMNS * LANES <= dim; column += COLUMNS * LANES) {
            run_tile<COLUMNS>(c, block, count, first == 0, state, head, column);
        }
        for (; column < dim; column += LANES) run_tile<1>(c, block, count, first == 0, state, head, column);
        for (int t = 0; t < count; ++t) {
            const float scale = 1.0f / __builtin_sqrtf(sum_of_squares(block.o[t], dim) / float(dim) + c.eps);
            const size_t gate = size_t(first + t) * c.value_heads + head;
            for (int i = 0; i < dim; i += LANES) {
                const Lanes normed = load(block.o[t] + i) * splat(scale) * load(c.norm + i);
                store(c.out + gate * dim + i, normed * sigmoid(load(c.z + gate * dim + i)));
            }
            if (!c.revocable) continue;
            c.decay[gate] = block.decay[t];
            if (head != key_head) continue;
            for (int i = 0; i < dim; i += LANES) store(c.k + (size_t(t) * c.key_heads + head) * dim + i, load(block.k[t] + i));
        }
    }
}

void gdn_settle(const GdnCall& c, int head) {
    float* state = c.state + size_t(head) * c.dim * c.dim;
    for (int column = 0; column < c.dim; column += LANES) apply_accepted<1>(c, state, head, column, nullptr);
}

}  // namespace jubako::JUBAKO_ISA
