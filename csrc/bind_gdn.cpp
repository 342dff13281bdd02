// The gated delta net: `Gdn` (a layer's small weights) and `GdnState` (what it remembers of one sequence).
#include <algorithm>
#include <cstring>

#include "arrays.h"
#include "kernels/gdn.h"
#include "pool.h"

namespace jubako {
namespace {

struct GdnState {
    const int heads, key_heads, dim, past, ring, channels;
    int64_t position = 0;  // tokens seen
    int pending = 0;       // of those, the last ones that `memory` does not hold yet, only their factors
    int side = 0;          // which half of `keys` holds the pending tokens' k; the next revocable call writes the other
    Region conv, memory, keys, u, decay;

    GdnState(int value_heads, int key_heads, int dim, int kernel, int channels)
        : heads(value_heads),
          key_heads(key_heads),
          dim(dim),
          past(kernel - 1),
          ring(past + GDN_REVOCABLE),
          channels(channels),
          conv(size_t(ring) * channels * sizeof(float)),
          memory(size_t(heads) * dim * dim * sizeof(float)),
          keys(2 * keys_of_a_side() * sizeof(float)),
          u(size_t(GDN_REVOCABLE) * heads * dim * sizeof(float)),
          decay(size_t(GDN_REVOCABLE) * heads * sizeof(float)) {}

    size_t keys_of_a_side() const { return size_t(GDN_REVOCABLE) * key_heads * dim; }
    float* side_keys(int which) const { return keys.as<float>() + size_t(which) * keys_of_a_side(); }

    void reset() {
        position = 0;
        pending = 0;
        conv.clear();
        memory.clear();
    }

    // Forgets the last tokens of a revocable call but `count`.
    void keep(int count) {
        require(count >= 0 && count <= pending, "only tokens of the last revocable call can be taken back");
        position -= pending - count;
        pending = count;
    }

    // Brings `memory` up to the last token.
    void settle() {
        GdnCall call = {};
        call.value_heads = heads;
        call.key_heads = key_heads;
        call.dim = dim;
        call.accepted = pending;
        call.accepted_k = side_keys(side);
        call.u = u.as<float>();
        call.decay = decay.as<float>();
        call.state = memory.as<float>();
        parallel_for(heads, [&](int64_t head) { JUBAKO_CALL(gdn_settle(call, static_cast<int>(head))); });
        pending = 0;
    }

    // Column of token p at p mod ring: a convolution finds its past after tokens were taken back, too.
    void remember(const float* qkv, int tokens) {
        for (int t = std::max(0, tokens - ring); t < tokens; ++t) {
            float* column = conv.as<float>() + size_t((position + t) % ring) * channels;
            std::memcpy(column, qkv + size_t(t) * channels, size_t(channels) * sizeof(float));
        }
        position += tokens;
    }
};

class Gdn {
public:
    Gdn(const Floats<2>& conv, const Floats<1>& dt_bias, const Floats<1>& a, const Floats<1>& norm, int key_heads, float eps)
        : conv_(taps_first(conv)), dt_bias_(copy(dt_bias)), a_(copy(a)), norm_(copy(norm)) {
        call_ = {};
        call_.key_heads = key_heads;
        call_.value_heads = static_cast<int>(dt_bias_.size());
        call_.dim = static_cast<int>(norm_.size());
        call_.kernel = static_cast<int>(conv.shape(1));
        call_.channels = static_cast<int>(conv.shape(0));
        call_.eps = eps;
        require(key_heads > 0 && call_.value_heads % key_heads == 0, "value heads must be a multiple of the key heads");
        require(call_.dim % 16 == 0 && call_.dim > 0 && call_.dim <= GDN_MAX_DIM, "head width must be a multiple of 16 up to 256");
        require(call_.kernel >= 2 && call_.kernel <= GDN_MAX_KERNEL, "the convolution must have 2 to 64 taps");
        require(call_.channels == (2 * key_heads + call_.value_heads) * call_.dim, "conv has the wrong number of channels");
        require(a_.size() == dt_bias_.size(), "a and dt_bias must have an entry for each value head");
    }

    GdnState* new_state() const { return new GdnState(call_.value_heads, call_.key_heads, call_.dim, call_.kernel, call_.channels); }

    Owned run(const Floats<2>& qkv, const Floats<2>& z, const Floats<2>& beta, const Floats<2>& alpha, GdnState& state,
              bool revocable) const {
        GdnCall call = call_;
        const int64_t tokens = static_cast<int64_t>(qkv.shape(0)), inner = int64_t(call.value_heads) * call.dim;
        require_shape(qkv, {tokens, call.channels}, "qkv");
        require_shape(z, {tokens, inner}, "z");
        require_shape(beta, {tokens, call.value_heads}, "beta");
        require_shape(alpha, {tokens, call.value_heads}, "alpha");
        require(!revocable || tokens <= GDN_REVOCABLE, "a revocable call takes at most 16 tokens");
        require(state.channels == call.channels && state.dim == call.dim && state.past == call.kernel - 1, "state of another layer");
        Owned out = output<float>({tokens, inner});
        call.tokens = static_cast<int>(tokens);
        call.position = state.position;
        call.conv = conv_.data();
        call.dt_bias = dt_bias_.data();
        call.a = a_.data();
        call.norm = norm_.data();
        call.qkv = qkv.data();
        call.z = z.data();
        call.beta = beta.data();
        call.alpha = alpha.data();
        call.conv_past = state.conv.as<float>();
        call.ring = state.ring;
        call.revocable = revocable;
        call.accepted = state.pending;
        call.accepted_k = state.side_keys(state.side);
        call.k = state.side_keys(1 - state.side);
        call.u = state.u.as<float>();
        call.decay = state.decay.as<float>();
        call.state = state.memory.as<float>();
        call.out = out.data();
        nb::gil_scoped_release release;
        parallel_for(call.value_heads, [&](int64_t head) { JUBAKO_CALL(gdn_head(call, static_cast<int>(head))); });
        state.remember(call.qkv, call.tokens);
        state.pending = revocable ? call.tokens : 0;
        if (revocable) state.side = 1 - state.side;
        return out;
    }

private:
    std::vector<float> conv_, dt_bias_, a_, norm_;
    GdnCall call_;
};

}  // namespace
}  // namespace jubako

void bind_gdn(nanobind::module_& m) {
    namespace nb = nanobind;
    using namespace nb::literals;
    using namespace jubako;
    nb::class_<GdnState>(m, "GdnState", "What a gated delta net remembers: past convolution columns and a matrix for each value head.")
        .def_rw("position", &GdnState::position, "Tokens seen.")
        .def_ro("pending", &GdnState::pending, "The last tokens, those of a revocable call, that `memory` does not hold yet.")
        .def("reset", &GdnState::reset, "Forget everything.")
        .def("keep", &GdnState::keep, "count"_a, "Forget the pending tokens but the first `count`, in constant time.")
        .def("settle", &GdnState::settle, nb::call_guard<nb::gil_scoped_release>(), "Bring `memory` up to the last token.")
        .def_prop_ro(
            "conv",
            [](GdnState& s) {
                const size_t shape[] = {size_t(s.ring), size_t(s.channels)};
                return nb::ndarray<nb::numpy, float>(s.conv.as<float>(), 2, shape, nb::find(s));
            },
            "float32 [kernel - 1 + 16, channels], a view: the raw column of token p at p mod their number. The last kernel - 1 matter.")
        .def_prop_ro(
            "memory",
            [](GdnState& s) {
                const size_t shape[] = {size_t(s.heads), size_t(s.dim), size_t(s.dim)};
                return nb::ndarray<nb::numpy, float>(s.memory.as<float>(), 3, shape, nb::find(s));
            },
            "float32 [heads, dim of k, dim of v], a view, without the pending tokens.");
    nb::class_<Gdn>(m, "Gdn", "The small weights of a gated delta net.")
        .def(nb::init<const Floats<2>&, const Floats<1>&, const Floats<1>&, const Floats<1>&, int, float>(), "conv"_a.noconvert(),
             "dt_bias"_a.noconvert(), "a"_a.noconvert(), "norm"_a.noconvert(), "key_heads"_a, "eps"_a)
        .def("new_state", &Gdn::new_state, nb::rv_policy::take_ownership, "The state before the first token.")
        .def("run", &Gdn::run, "qkv"_a.noconvert(), "z"_a.noconvert(), "beta"_a.noconvert(), "alpha"_a.noconvert(), "state"_a,
             "revocable"_a = false, "See ops: gdn.");
}
