// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/cuda/compile_cache.h"

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iomanip>
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
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
    return fs::path(cache) / "octavo" / "cuda";
  }
  const char* home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? fs::path() : fs::path(home) / ".cache" / "octavo" / "cuda";
}

/// FNV-1a. It names files and finds damaged ones; a file holds its whole identity, which is compared.
std::uint64_t hash(std::string_view text) {
  std::uint64_t value = 0xCBF29CE484222325U;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  return value;
}

std::string hexadecimal(std::uint64_t value) {
  std::ostringstream text;
  text << std::hex << std::setw(16) << std::setfill('0') << value;
  return text.str();
}

fs::path file_of(const fs::path& folder, const std::string& identity) {
  return folder / (hexadecimal(hash(identity)) + ".program");
}

/// Returns what a file begins with where it holds this program of this identity, undamaged.
std::string head_of(const std::string& identity, std::string_view program) {
  return "Octavo's program " + hexadecimal(hash(program)) + " of " + std::to_string(program.size()) +
         " bytes, from this source:\n" + identity;
}

/// Writes a file of its own name in the folder, and returns the name; empty where it cannot be written.
std::string written(const fs::path& folder, const std::string& text) {
  std::string name = folder / "new.XXXXXX";
  const int file = mkstemp(name.data());
  if (file < 0) return "";
  close(file);
  std::ofstream out(name, std::ios::binary);
  out << text;
  out.close();
  if (out) return name;
  std::error_code ignored;
  fs::remove(name, ignored);
  return "";
}

}  // namespace

std::optional<std::string> load_compiled(const std::string& identity) {
  const fs::path in = folder();
  if (in.empty()) return std::nullopt;
  std::ifstream file(file_of(in, identity), std::ios::binary);
  std::ostringstream all;
  if (!(all << file.rdbuf())) return std::nullopt;
  const std::string text = all.str();
  const auto start = text.find('\n') + 1 + identity.size();
  if (start > text.size()) return std::nullopt;
  std::string program = text.substr(start);
  if (program.empty() || !text.starts_with(head_of(identity, program))) return std::nullopt;
  return program;
}

void save_compiled(const std::string& identity, const std::string& compiled) {
  const fs::path in = folder();
  if (in.empty()) return;
  std::error_code failure;
  fs::create_directories(in, failure);
  const std::string own = written(in, head_of(identity, compiled) + compiled);
  if (own.empty()) return;
  fs::rename(own, file_of(in, identity), failure);
  if (failure) fs::remove(own, failure);
}

}  // namespace octavo::cuda_backend
