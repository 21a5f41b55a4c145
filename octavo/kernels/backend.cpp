// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/backend.h"

#include <cstdlib>

#include "octavo/kernels/cpu/isa.h"
#include "octavo/kernels/error.h"
#include "octavo/kernels/plugin.h"
#include "octavo/kernels/reference/table.h"

namespace octavo {

const KernelTable& backend(std::string_view name) {
  if (name == "cpu") return cpu::table();
  if (name == "reference") return reference::table;
  if (name != "sycl" && name != "cuda") {
    fail(ErrorCode::invalid_argument, "kernels.backend", "expected one of reference, cpu, sycl, cuda, got '", name,
         "'");
  }
  const Plugin& found = plugin(std::string(name));
  if (found.table == nullptr) {
    fail(ErrorCode::unsupported, "kernels.backend", "the ", name, " back end is missing: ", found.reason);
  }
  return *found.table;
}

const KernelTable& host_backend() {
  static const KernelTable& chosen = [&]() -> const KernelTable& {
    const char* wanted = std::getenv("OCTAVO_BACKEND");
    return backend(wanted == nullptr ? "cpu" : wanted);
  }();
  return chosen;
}

std::vector<BackendStatus> backends() {
  std::vector<BackendStatus> all = {{"reference", true, "linked"},
                                    {"cpu", true, "instruction set " + std::string(cpu_isa())}};
  for (const char* name : {"sycl", "cuda"}) {
    const Plugin& found = plugin(name);
    all.push_back({name, found.table != nullptr, found.reason});
  }
  return all;
}

std::string_view cpu_isa() { return cpu::table().name; }

}  // namespace octavo
