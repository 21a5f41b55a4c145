// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/cpu/isa.h"

#include <array>
#include <cstdlib>
#include <string>

#include "octavo/kernels/backend.h"
#include "octavo/kernels/error.h"

namespace octavo::cpu {

#if defined(__x86_64__) && !defined(OCTAVO_PORTABLE_ONLY)
namespace avx512 {
extern const KernelTable table;
}
namespace avx2 {
extern const KernelTable table;
}
#endif
namespace portable {
extern const KernelTable table;
}

namespace {

struct Isa {
  const KernelTable& table;
  bool (*on_this_cpu)();
};

// Best first.
constexpr std::array kIsas = {
#if defined(__x86_64__) && !defined(OCTAVO_PORTABLE_ONLY)
    Isa{avx512::table,
        [] {
          return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
        }},
    Isa{avx2::table, [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }},
#endif
    Isa{portable::table, [] { return true; }},
};

const KernelTable& choose() {
  const char* wanted = std::getenv("OCTAVO_ISA");
  std::string usable;
  for (const Isa& isa : kIsas) {
    if (!isa.on_this_cpu()) continue;
    if (wanted == nullptr || std::string_view(wanted) == isa.table.name) return isa.table;
    usable += (usable.empty() ? "" : ", ") + std::string(isa.table.name);
  }
  fail(ErrorCode::invalid_argument, "kernels.cpu", "expected OCTAVO_ISA to be one of ", usable, " on this CPU, got '",
       wanted, "'");
}

}  // namespace

const KernelTable& table() {
  static const KernelTable& chosen = choose();
  return chosen;
}

}  // namespace octavo::cpu
