#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "isa.h"
#include "pool.h"

namespace nb = nanobind;
using namespace nb::literals;

void bind_linear(nb::module_& m) __attribute__((weak));
void bind_ops(nb::module_& m) __attribute__((weak));
void bind_measure(nb::module_& m) __attribute__((weak));

static jubako::Isa isa_named(const std::string& name) {
    if (name == "avx2") return jubako::Isa::avx2;
    if (name == "avx512") return jubako::Isa::avx512;
    throw nb::value_error(("no instruction set level \"" + name + "\"; there are avx2 and avx512").c_str());
}

NB_MODULE(_cpu, m) {
    m.doc() = "The CPU kernels of Jubako.";
    m.def("isa", [] { return std::string(jubako::isa() == jubako::Isa::avx512 ? "avx512" : "avx2"); },
          "The instruction set level in use: avx2 or avx512.");
    m.def("isa_supported", [](const std::string& name) { return jubako::isa_supported(isa_named(name)); }, "name"_a,
          "Whether this processor runs the kernels of that level.");
    m.def("set_isa",
          [](const std::string& name) {
              jubako::Isa level = isa_named(name);
              if (!jubako::isa_supported(level))
                  throw nb::value_error(("this processor has no " + name).c_str());
              jubako::set_isa(level);
          },
          "name"_a, "Use the kernels of that level. Results do not depend on it, only speed does.");
    m.def("threads", &jubako::threads, "Threads the kernels run on, the caller's included.");
    m.def("set_threads", &jubako::set_threads, "count"_a, "Run the kernels on that many threads.");
    m.def("default_threads", &jubako::default_threads, "The physical cores this process may use.");
    if (bind_linear) bind_linear(m);
    if (bind_ops) bind_ops(m);
    if (bind_measure) bind_measure(m);
}
