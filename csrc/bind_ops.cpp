// All operations but the matrix products.
#include <nanobind/nanobind.h>

void bind_attention(nanobind::module_& m);
void bind_expert_threads(nanobind::module_& m);
void bind_gdn(nanobind::module_& m);
void bind_hyper(nanobind::module_& m);
void bind_index(nanobind::module_& m);
void bind_ngram(nanobind::module_& m);
void bind_route(nanobind::module_& m);
void bind_store(nanobind::module_& m);

void bind_ops(nanobind::module_& m) {
    bind_attention(m);
    bind_expert_threads(m);
    bind_gdn(m);
    bind_hyper(m);
    bind_index(m);
    bind_ngram(m);
    bind_route(m);
    bind_store(m);
}
