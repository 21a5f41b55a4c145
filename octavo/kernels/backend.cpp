// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/backend.h"

#include <cstdlib>

#include "octavo/kernels/cpu/isa.h"
#include "octavo/kernels/error.h"
#include "octavo/kernels/plugin.h"
#include "octavo/kernels/reference/table.h"

namespace octavo {

namespace {

bool is_plugin(std::string_view name) { return name == "sycl" || name == "cuda"; }

}  // namespace

const KernelTable& backend(std::string_view name) {
  if (name == "cpu") return cpu::table();
  if (name == "reference") return reference::table;
  if (!is_plugin(name)) {
    fail(ErrorCode::invalid_argument, "kernels.backend", "expected one of reference, cpu, sycl, cuda as the back end, ",
         "got '", name, "': OCTAVO_BACKEND names the one for ordinary memory");
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

BackendStatus backend_status(std::string_view name) {
  if (name == "reference") return {"reference", true, "linked"};
  if (name == "cpu") return {"cpu", true, "instruction set " + std::string(cpu_isa())};
  if (!is_plugin(name)) return {std::string(name), false, "Octavo has no such back end"};
  const Plugin& found = plugin(std::string(name));
  return {std::string(name), found.table != nullptr, found.reason};
}

std::vector<BackendStatus> backends() {
  std::vector<BackendStatus> all;
  for (const char* name : {"reference", "cpu", "sycl", "cuda"}) all.push_back(backend_status(name));
  return all;
}

std::string_view cpu_isa() { return cpu::table().name; }

}  // namespace octavo
