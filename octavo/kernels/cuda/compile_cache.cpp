// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/cuda/compile_cache.h"

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iterator>
#include <sstream>
#include <string_view>
#include <system_error>
#include <unistd.h>

namespace octavo::cuda_backend {

namespace {

namespace fs = std::filesystem;

/// Returns the folder of the files; empty where there is none.
fs::path folder() {
  if (const char* own = std::getenv("OCTAVO_CUDA_CACHE")) return own;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
    return fs::path(cache) / "octavo" / "cuda";
  }
  const char* home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? fs::path() : fs::path(home) / ".cache" / "octavo" / "cuda";
}

/// FNV-1a. It only names files: a file holds its whole identity, which is compared.
std::uint64_t hash(std::string_view text) {
  std::uint64_t value = 0xCBF29CE484222325U;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  return value;
}

fs::path file_of(const fs::path& folder, const std::string& identity) {
  std::ostringstream name;
  name << std::hex << std::setw(16) << std::setfill('0') << hash(identity) << ".program";
  return folder / name.str();
}

/// Returns what a file must begin with to be the one of this identity, and whole: what follows has `bytes` bytes.
std::string head_of(const std::string& identity, std::size_t bytes) {
  return "Octavo's program of " + std::to_string(bytes) + " bytes, from " + std::to_string(identity.size()) +
         " bytes of source\n" + identity;
}

}  // namespace

std::optional<std::string> load_compiled(const std::string& identity) {
  const fs::path in = folder();
  if (in.empty()) return std::nullopt;
  std::ifstream file(file_of(in, identity), std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::size_t bytes = 0;
  std::istringstream(all.substr(0, all.find('\n'))).ignore(64, 'f') >> bytes;
  const std::string head = head_of(identity, bytes);
  if (bytes == 0 || all.size() != head.size() + bytes || !all.starts_with(head)) return std::nullopt;
  return all.substr(head.size());
}

void save_compiled(const std::string& identity, const std::string& compiled) {
  const fs::path in = folder();
  if (in.empty()) return;
  std::error_code failure;
  fs::create_directories(in, failure);
  const fs::path file = file_of(in, identity);
  const fs::path own =
      file.string() + "." + std::to_string(getpid());  // of this process, so that no other reads a part
  std::ofstream out(own, std::ios::binary);
  out << head_of(identity, compiled.size()) << compiled;
  out.close();
  if (out) {
    fs::rename(own, file, failure);
  } else {
    fs::remove(own, failure);
  }
}

}  // namespace octavo::cuda_backend
