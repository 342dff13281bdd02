// The n-gram embedding's injection: `Ngram` (its weights) and `NgramState` (the convolution's past columns).
#include <algorithm>
#include <cstring>

#include "arrays.h"
#include "kernels/ngram.h"
#include "linear.h"
#include "pool.h"
#include "stored_weight.h"

namespace jubako {
namespace {

constexpr int NGRAM_REVOCABLE = 16;  // tokens that can be taken back, at most

struct NgramState {
    const int columns, width;  // columns: those a convolution looks back on, and those that may be taken back
    int64_t position = 0;  // tokens seen
    Region past;

    NgramState(int past_columns, int width)
        : columns(past_columns + NGRAM_REVOCABLE), width(width), past(size_t(columns) * width * sizeof(float)) {}

    void reset() {
        position = 0;
        past.clear();
    }

    void truncate(int64_t to) {
        require(to <= position && to >= position - NGRAM_REVOCABLE, "at most 16 tokens can be taken back");
        position = to;
    }

    void remember(const float* normed, int tokens) {
        for (int t = std::max(0, tokens - columns); t < tokens; ++t) {
            float* column = past.as<float>() + size_t((position + t) % columns) * width;
            std::memcpy(column, normed + size_t(t) * width, size_t(width) * sizeof(float));
        }
        position += tokens;
    }
};

class Ngram {
public:
    Ngram(const StoredWeight& key, const StoredWeight& value, const Floats<1>& norm_key, const Floats<1>& norm_query, const Floats<1>& norm_conv,
          const Floats<2>& conv, int streams, int dilation, float eps)
        : key_(key),
          value_(value),
          norm_key_(copy(norm_key)),
          norm_query_(copy(norm_query)),
          norm_conv_(copy(norm_conv)),
          conv_(taps_first(conv)) {
        call_ = {};
        call_.streams = streams;
        call_.hidden = static_cast<int>(value.rows);
        call_.kernel = static_cast<int>(conv.shape(1));
        call_.dilation = dilation;
        call_.eps = eps;
        const int64_t wide = int64_t(streams) * value.rows;
        require(streams > 0 && call_.hidden % 16 == 0, "streams must have a multiple of 16 elements");
        require(key.rows == wide && key.cols == value.cols, "key and value do not fit the streams");
        require(call_.kernel >= 2 && call_.kernel <= NGRAM_MAX_KERNEL && dilation > 0, "the convolution must have 2 to 64 taps");
        for (size_t size : {norm_key_.size(), norm_query_.size(), norm_conv_.size(), size_t(conv.shape(0))}) {
            require(static_cast<int64_t>(size) == wide, "norms and conv must cover all streams");
        }
    }

    NgramState* new_state() const { return new NgramState(call_.past_columns(), call_.streams * call_.hidden); }

    void inject(const Array<float, 3>& streams, const Floats<2>& embedding, NgramState& state) const {
        NgramCall call = call_;
        const int64_t tokens = static_cast<int64_t>(streams.shape(0)), wide = int64_t(call.streams) * call.hidden;
        require_shape(streams, {tokens, call.streams, call.hidden}, "streams");
        require_shape(embedding, {tokens, key_.cols}, "embedding");
        require(state.width == wide && state.columns == call.past_columns() + NGRAM_REVOCABLE, "state of another network");
        const float* rows = embedding.data();
        call.x = streams.data();
        nb::gil_scoped_release release;
        call.key = scratch<float>(Slot::ops_a, tokens * (wide + call.hidden));
        float* value = call.key + tokens * wide;
        const LinearTask products[] = {{&key_, 0, call.key}, {&value_, 0, value}};
        linear(products, 2, rows, tokens, key_.cols);
        call.tokens = static_cast<int>(tokens);
        call.position = state.position;
        call.norm_key = norm_key_.data();
        call.norm_query = norm_query_.data();
        call.norm_conv = norm_conv_.data();
        call.conv = conv_.data();
        call.value = value;
        call.past = state.past.as<float>();
        call.ring = state.columns;
        parallel_for(tokens * call.streams, [&](int64_t task) {
            JUBAKO_CALL(ngram_gate(call, static_cast<int>(task / call.streams), static_cast<int>(task % call.streams)));
        });
        parallel_for(tokens, [&](int64_t t) { JUBAKO_CALL(ngram_convolve(call, static_cast<int>(t))); });
        state.remember(call.key, call.tokens);
    }

private:
    Weight key_, value_;
    std::vector<float> norm_key_, norm_query_, norm_conv_, conv_;
    NgramCall call_;
};

}  // namespace
}  // namespace jubako

void bind_ngram(nanobind::module_& m) {
    namespace nb = nanobind;
    using namespace nb::literals;
    using namespace jubako;
    nb::class_<NgramState>(m, "NgramState", "Past columns of the n-gram convolution.")
        .def_rw("position", &NgramState::position, "Tokens seen.")
        .def("reset", &NgramState::reset, "Forget everything.")
        .def("truncate", &NgramState::truncate, "length"_a, "Forget the last tokens, 16 at most, in constant time.")
        .def_prop_ro(
            "past",
            [](NgramState& s) {
                const size_t shape[] = {size_t(s.columns), size_t(s.width)};
                return nb::ndarray<nb::numpy, float>(s.past.as<float>(), 2, shape, nb::find(s));
            },
            "float32 [(kernel - 1) * dilation + 16, streams * hidden], a view: the normed column of token p at p mod their number.");
    nb::class_<Ngram>(m, "Ngram", "Weights of the n-gram embedding's injection.")
        .def(nb::init<const StoredWeight&, const StoredWeight&, const Floats<1>&, const Floats<1>&, const Floats<1>&, const Floats<2>&, int, int,
                      float>(),
             "key"_a, "value"_a, "norm_key"_a.noconvert(), "norm_query"_a.noconvert(), "norm_conv"_a.noconvert(), "conv"_a.noconvert(),
             "streams"_a, "dilation"_a, "eps"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
        .def("new_state", &Ngram::new_state, nb::rv_policy::take_ownership, "The state before the first token.")
        .def("inject", &Ngram::inject, "streams"_a.noconvert(), "embedding"_a.noconvert(), "state"_a, "See ops: ngram_inject.");
}
