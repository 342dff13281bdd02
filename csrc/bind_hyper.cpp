// Hyper-connections: `HyperMix` (a mixer's weights), `hyper_combine`.
#include <optional>

#include "arrays.h"
#include "kernels/hyper.h"
#include "linear.h"
#include "pool.h"
#include "stored_weight.h"

namespace jubako {
namespace {

class HyperMix {
public:
    HyperMix(const Floats<1>& norm, const StoredWeight& down, const StoredWeight& up, const StoredWeight* inject, int streams, float eps)
        : norm_(copy(norm)), down_(down), up_(up), inject_(inject ? std::optional<Weight>(*inject) : std::nullopt) {
        const int64_t wide = static_cast<int64_t>(norm_.size());
        require(streams > 0 && wide % (streams * 16) == 0, "streams must have a multiple of 16 elements");
        shape_ = {streams, static_cast<int>(wide / streams), static_cast<int>(down.rows), eps};
        require(down.cols == wide && up.rows == wide && up.cols == down.rows, "down and up do not fit the streams");
        require(!inject || (inject->rows == streams && inject->cols == wide), "inject does not fit the streams");
    }

    std::pair<Owned, std::optional<Owned>> mix(const Floats<3>& streams) const {
        const int64_t tokens = static_cast<int64_t>(streams.shape(0)), hidden = shape_.hidden, rank = shape_.rank;
        const int64_t wide = hidden * shape_.streams;
        require_shape(streams, {tokens, shape_.streams, hidden}, "streams");
        Owned mixed = output<float>({tokens, hidden});
        std::optional<Owned> inject;
        if (inject_) inject = output<float>({tokens, shape_.streams});
        const float* x = streams.data();
        nb::gil_scoped_release release;
        // normed and gates [tokens, wide], low rank [tokens, rank]
        float* normed = scratch<float>(Slot::ops_a, tokens * (2 * wide + rank));
        float *gates = normed + tokens * wide, *low = gates + tokens * wide;
        parallel_for(tokens, [&](int64_t t) { JUBAKO_CALL(hyper_norm(shape_, x + t * wide, norm_.data(), normed + t * wide)); });
        const LinearTask first[] = {{&down_, 0, low}, {inject_ ? &*inject_ : nullptr, 0, inject_ ? inject->data() : nullptr}};
        linear(first, inject_ ? 2 : 1, normed, tokens, wide);
        for (int64_t t = 0; t < tokens; ++t) JUBAKO_CALL(hyper_low_rank(shape_, low + t * rank));
        const LinearTask second[] = {{&up_, 0, gates}};
        linear(second, 1, low, tokens, rank);
        parallel_for(tokens, [&](int64_t t) {
            JUBAKO_CALL(hyper_gate(shape_, gates + t * wide, normed + t * wide, mixed.data() + t * hidden));
        });
        for (int64_t t = 0; inject_ && t < tokens; ++t) JUBAKO_CALL(hyper_inject(shape_, inject->data() + t * shape_.streams));
        return {std::move(mixed), std::move(inject)};
    }

private:
    std::vector<float> norm_;
    Weight down_, up_;
    std::optional<Weight> inject_;
    HyperShape shape_;
};

void combine(const Array<float, 3>& streams, const Floats<2>& inject, const Floats<2>& out) {
    const int64_t tokens = static_cast<int64_t>(streams.shape(0));
    const HyperShape shape{static_cast<int>(streams.shape(1)), static_cast<int>(streams.shape(2)), 0, 0.0f};
    require(shape.hidden % 16 == 0, "streams must have a multiple of 16 elements");
    require_shape(inject, {tokens, shape.streams}, "inject");
    require_shape(out, {tokens, shape.hidden}, "out");
    const int64_t wide = int64_t(shape.streams) * shape.hidden;
    float* x = streams.data();
    nb::gil_scoped_release release;
    parallel_for(tokens, [&](int64_t t) {
        JUBAKO_CALL(hyper_combine(shape, x + t * wide, inject.data() + t * shape.streams, out.data() + t * shape.hidden));
    });
}

Owned rms_norm_rows(const Floats<2>& x, const Floats<1>& gamma, float eps) {
    const int64_t tokens = static_cast<int64_t>(x.shape(0)), width = static_cast<int64_t>(x.shape(1));
    require(width > 0 && width % 16 == 0, "rows must have a multiple of 16 elements");
    require_shape(gamma, {width}, "gamma");
    const HyperShape shape{1, static_cast<int>(width), 0, eps};
    Owned out = output<float>({tokens, width});
    nb::gil_scoped_release release;
    parallel_for(tokens, [&](int64_t t) {
        JUBAKO_CALL(hyper_norm(shape, x.data() + t * width, gamma.data(), out.data() + t * width));
    });
    return out;
}

}  // namespace
}  // namespace jubako

void bind_hyper(nanobind::module_& m) {
    namespace nb = nanobind;
    using namespace nb::literals;
    using namespace jubako;
    nb::class_<HyperMix>(m, "HyperMix", "A hyper-connection's mixer.")
        .def(nb::init<const Floats<1>&, const StoredWeight&, const StoredWeight&, const StoredWeight*, int, float>(), "norm"_a.noconvert(), "down"_a,
             "up"_a, "inject"_a.none(), "streams"_a, "eps"_a, nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>())
        .def("mix", &HyperMix::mix, "streams"_a.noconvert(), "See ops: hyper_mix.");
    m.def("rms_norm", &rms_norm_rows, "x"_a.noconvert(), "gamma"_a.noconvert(), "eps"_a, "See ops: rms_norm.");
    m.def("hyper_combine", &combine, "streams"_a.noconvert(), "inject"_a.noconvert(), "out"_a.noconvert(), "See ops: hyper_combine.");
}
