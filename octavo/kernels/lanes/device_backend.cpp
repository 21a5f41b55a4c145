// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/lanes/device_backend.h"

#include <cstddef>
#include <cstdio>
#include <exception>
#include <sstream>

#include "octavo/export.h"
#include "octavo/kernels/backend.h"

namespace octavo::lanes {

std::string file_of(const KernelName& name) { return std::string("octavo/kernels/lanes/") + name.program + ".kernel"; }

std::vector<std::string> options_of(const std::string& own, Widths widths) {
  std::vector<std::string> all = {"-DOCTAVO_LANES=" + std::to_string(widths.lanes),
                                  "-DOCTAVO_SPAN=" + std::to_string(widths.span)};
  std::istringstream words(own);
  for (std::string option; words >> option;) all.push_back(option);
  return all;
}

std::string first_error(const std::string& log) {
  const auto start = log.find("error:");
  if (start == std::string::npos) return log.substr(0, log.find('\n'));
  const auto line = log.find_first_not_of(" \t", log.rfind('\n', start) + 1);
  return log.substr(line, log.find('\n', start) - line);
}

}  // namespace octavo::lanes

extern "C" {

OCTAVO_API std::uint32_t octavo_backend_abi() { return octavo::kPluginAbi; }

OCTAVO_API const octavo::KernelTable* octavo_backend_create(char* reason, std::size_t capacity) {
  try {
    return &octavo::lanes::table_for_devices();
  } catch (const std::exception& error) {
    std::snprintf(reason, capacity, "%s", error.what());
  }
  return nullptr;
}

}  // extern "C"
