// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/shared/memory_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <tuple>
#include <unistd.h>
#include <vector>

#include "octavo/kernels/error.h"
#include "octavo/kernels/file_room.h"
#include "octavo/kernels/round_up.h"

namespace octavo {

namespace {

constexpr std::uint64_t kFilePage = 4096;

/// The files of this process, by which open() knows its own ones. Never destroyed: threads of queues may end later than
/// static objects.
struct MadeHere {
  std::mutex mutex;
  std::vector<std::weak_ptr<MemoryFile>> files;
};

MadeHere& made_here() {
  static auto* const all = new MadeHere;
  return *all;
}

std::shared_ptr<MemoryFile> find_here(const MemoryFile::Name& name) {
  MadeHere& all = made_here();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.files, [](const auto& file) { return file.expired(); });
  for (const auto& weak : all.files) {
    auto file = weak.lock();
    if (file && file->name().token == name.token) return file;
  }
  return nullptr;
}

/// Returns the bytes of address space of a file: all memory of the machine, which no file can fill, but at most kMost,
/// because with many ranks on a host each of their files needs address space.
std::uint64_t address_space() {
  constexpr std::uint64_t kMost = std::uint64_t{64} << 30U;
  constexpr std::uint64_t kLeast = std::uint64_t{1} << 30U;  // also where the system does not say what it has
  const std::int64_t pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  return std::clamp(static_cast<std::uint64_t>(std::max<std::int64_t>(pages, 0) * page_bytes), kLeast, kMost);
}

std::uint8_t* map_file(int descriptor, std::uint64_t bytes) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::uint8_t*>(data);
}

std::string path_of(const MemoryFile::Name& name) {
  std::ostringstream path;
  path << "/proc/" << name.process << "/fd/" << name.descriptor;
  return path.str();
}

/// Whether the path leads to a file of ours. It is called before opening, because on another host the same path may be
/// anything.
bool looks_like_ours(const std::string& path) {
  char target[64] = {};
  const ssize_t length = readlink(path.c_str(), target, sizeof target - 1);
  return length > 0 && std::string_view(target).starts_with("/memfd:octavo");
}

}  // namespace

std::shared_ptr<MemoryFile> MemoryFile::create() {
  const auto refuse = [](const char* what) {
    fail(ErrorCode::unsupported, "comm.memory_file", "no memory to share with other processes: ", what,
         " said: ", std::strerror(errno));
  };
  const int descriptor = memfd_create("octavo", MFD_CLOEXEC);
  if (descriptor < 0) refuse("memfd_create");
  Name name{getpid(), descriptor, address_space()};
  std::uint8_t* const data = map_file(descriptor, name.capacity);
  if (!data) {
    close(descriptor);
    refuse("mmap");
  }
  const std::shared_ptr<MemoryFile> file(new MemoryFile(name, descriptor, data));
  file->grow(kFilePage);
  if (getrandom(file->name_.token.data(), sizeof name.token, 0) != sizeof name.token) refuse("getrandom");
  std::memcpy(data, file->name_.token.data(), sizeof name.token);
  MadeHere& all = made_here();
  const std::lock_guard lock(all.mutex);
  all.files.push_back(file);
  return file;
}

std::shared_ptr<MemoryFile> MemoryFile::open(const Name& name) {
  if (auto own = find_here(name)) return own;
  const std::string path = path_of(name);
  if (!looks_like_ours(path)) return nullptr;
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) return nullptr;
  struct stat status{};
  const bool has_token = fstat(descriptor, &status) == 0 && static_cast<std::uint64_t>(status.st_size) >= kFilePage;
  std::uint8_t* const data = has_token ? map_file(descriptor, name.capacity) : nullptr;
  close(descriptor);
  if (!data) return nullptr;
  std::shared_ptr<MemoryFile> file(new MemoryFile(name, -1, data));
  return std::memcmp(data, name.token.data(), sizeof name.token) == 0 ? file : nullptr;
}

MemoryFile::~MemoryFile() {
  munmap(data_, name_.capacity);
  if (descriptor_ >= 0) close(descriptor_);
}

void MemoryFile::grow(std::uint64_t bytes) {
  const std::uint64_t wanted = round_up(bytes, kFilePage);
  if (wanted <= size_) return;
  // Pages are taken now, because a process that is refused a page when it writes there is ended.
  const bool fits = wanted <= name_.capacity;
  const int refused = fits ? take_file_room(descriptor_, size_, wanted - size_, wanted - size_) : 0;
  if (!fits || refused != 0) {
    std::ignore = ftruncate(descriptor_, static_cast<off_t>(size_));  // gives back what was taken before the refusal
    fail(ErrorCode::out_of_memory, "comm.memory_file", "memory that ranks share cannot grow from ", size_, " to ",
         wanted, " bytes: ", fits ? std::strerror(refused) : "it has no address space for more",
         "; choose smaller buckets, or set symmetric_memory=False");
  }
  size_ = wanted;
}

}  // namespace octavo
