// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/page_files.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <iterator>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "octavo/kernels/error.h"
#include "octavo/kernels/file_room.h"
#include "octavo/kernels/fork.h"

namespace octavo {

namespace {

/// Opens a file in the directory that is gone when the process ends, however it ends. Returns -1 where there can be
/// none.
int open_nameless(const std::string& directory) {
#if defined(O_TMPFILE)
  const int file = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;  // otherwise the file system has no O_TMPFILE
#endif
  std::string name = directory + "/octavo-XXXXXX";
  const int named = mkstemp(name.data());
  if (named < 0) return named;
  fcntl(named, F_SETFD, FD_CLOEXEC);
  unlink(name.c_str());
  return named;
}

constexpr std::uint64_t kWindowBytes = std::uint64_t{1} << 36U;

/// Reserves addresses without memory, for mappings that come later. Returns null where the process may not have so
/// many.
std::byte* reserve(std::uint64_t bytes, void* at = nullptr) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at == nullptr ? 0 : MAP_FIXED);
  void* const start = mmap(at, bytes, PROT_NONE, flags, -1, 0);
  return start == MAP_FAILED ? nullptr : static_cast<std::byte*>(start);
}

/// Whether the process may reserve any number of addresses.
bool may_reserve() {
  rlimit addresses;
  return getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur == RLIM_INFINITY;
}

}  // namespace

/// The ranges of a file, each for one mapping. A range that is given back becomes a hole, which the next mapping of its
/// size takes. Mappings lie as their ranges do in the file, in windows of reserved addresses: the kernel then takes
/// neighbours for one mapping, of which a process may have some 65,000. Where addresses are limited, mappings lie
/// anywhere.
class PageFiles::File {
 public:
  explicit File(const std::string& directory) : file_(open_nameless(directory)) {
    if (file_ >= 0) return;
    const int reason = errno;
    const bool lacks_room =
        reason == ENOSPC || reason == EDQUOT || reason == EMFILE || reason == ENFILE || reason == ENOMEM;
    if (lacks_room) {
      fail(ErrorCode::out_of_memory, "kernels.managed", "no more files can be made in '", directory,
           "' now: ", std::strerror(reason));
    }
    fail(ErrorCode::invalid_argument, "kernels.managed", "expected a directory in which a file can be made, got '",
         directory, "': ", std::strerror(reason));
  }
  ~File() {
    close(file_);
    for (const auto& [offset, window] : windows_) munmap(window.start, window.bytes);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int descriptor() const { return file_; }
  bool is_own() const { return owner_ == getpid(); }

  /// Maps a range of zeros. Returns its memory, null where the disk is full, and where the range begins in the file.
  std::pair<void*, std::uint64_t> map(std::uint64_t bytes) {
    const auto hole = holes_.find(bytes);
    const Hole place = hole == holes_.end() ? Hole{end_, true} : hole->second;
    const std::uint64_t offset = place.offset;
    // Room on the disk is taken now. If the disk were full later, a write to a page without room would end the process.
    const std::uint64_t new_bytes = place.is_zero ? bytes : 0;  // give_back()
    const bool has_room = take_file_room(file_, offset, bytes, new_bytes) == 0;
    void* memory = has_room ? map_range(offset, bytes) : nullptr;
    if (memory == nullptr) {
      make_hole(offset, bytes);
      return {nullptr, offset};
    }
    if (hole == holes_.end())
      end_ += bytes;
    else
      holes_.erase(hole);
    if (!place.is_zero) std::memset(memory, 0, bytes);
    return {memory, offset};
  }

  void unmap(void* memory, std::uint64_t offset, std::uint64_t bytes) {
    if (memory == place_of(offset, bytes)) {
      keep_reserved(offset, memory, bytes);
    } else {
      munmap(memory, bytes);
    }
  }

  /// Makes a range a hole for another mapping. On a file system without holes, such as NFS before 4.2, the range keeps
  /// its room on the disk and what was written to it.
  void give_back(std::uint64_t offset, std::uint64_t bytes) {
    holes_.emplace(bytes, Hole{offset, make_hole(offset, bytes)});
  }

 private:
  struct Window {
    std::byte* start;
    std::uint64_t bytes;
  };
  struct Hole {
    std::uint64_t offset;
    bool is_zero;
  };

  void* map_range(std::uint64_t offset, std::uint64_t bytes) {
    void* place = place_of(offset, bytes);
    if (place == nullptr && !windows_.contains(offset) && may_reserve()) {
      const std::uint64_t window = std::max(bytes, kWindowBytes);
      if (std::byte* const start = reserve(window)) windows_[offset] = {start, window};
      place = place_of(offset, bytes);
    }
    const int flags = MAP_SHARED | (place == nullptr ? 0 : MAP_FIXED);
    void* const memory = mmap(place, bytes, PROT_READ | PROT_WRITE, flags, file_, static_cast<off_t>(offset));
    if (memory != MAP_FAILED) return memory;
    if (place != nullptr) keep_reserved(offset, place, bytes);
    return nullptr;
  }

  /// Returns the address of a range in its window; null where no window has a place for it.
  void* place_of(std::uint64_t offset, std::uint64_t bytes) const {
    const auto next = windows_.upper_bound(offset);
    if (next == windows_.begin()) return nullptr;
    const auto& [first, window] = *std::prev(next);
    return offset - first + bytes <= window.bytes ? window.start + (offset - first) : nullptr;
  }

  /// Reserves the addresses of a place that has no mapping any more. Where that fails, others may get the addresses,
  /// and the window takes no more mappings.
  void keep_reserved(std::uint64_t offset, void* place, std::uint64_t bytes) {
    if (reserve(bytes, place) == nullptr) windows_.erase(std::prev(windows_.upper_bound(offset)));
  }

  bool make_hole(std::uint64_t offset, std::uint64_t bytes) const {
    const auto first = static_cast<off_t>(offset), size = static_cast<off_t>(bytes);
    return fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, first, size) == 0;
  }

  const int file_;
  const pid_t owner_ = getpid();
  std::uint64_t end_ = 0;                     // end of all ranges
  std::multimap<std::uint64_t, Hole> holes_;  // by size
  std::map<std::uint64_t, Window> windows_;   // by the offset of the first range
};

PageFiles::PageFiles() {
  hold_over_forks<[]() -> std::mutex& { return all().mutex_; }>();
}

PageFiles& PageFiles::all() {
  static auto* const files = new PageFiles;
  return *files;
}

void* PageFiles::map(const std::string& directory, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  std::weak_ptr<File>& known = files_[directory];
  std::shared_ptr<File> file = known.lock();
  if (file == nullptr || !file->is_own()) known = file = std::make_shared<File>(directory);
  const auto [memory, offset] = file->map(bytes);
  if (memory != nullptr) mappings_[static_cast<const std::byte*>(memory)] = {std::move(file), offset, bytes};
  return memory;
}

bool PageFiles::unmap(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = mappings_.extract(static_cast<const std::byte*>(memory));
  if (!found) return false;
  const Mapping& mapping = found.mapped();
  mapping.file->unmap(memory, mapping.offset, mapping.bytes);
  if (mapping.file->is_own()) mapping.file->give_back(mapping.offset, mapping.bytes);
  return true;
}

PageFiles::Place PageFiles::find(const void* address) {
  const std::lock_guard lock(mutex_);
  const auto* const at = static_cast<const std::byte*>(address);
  const auto next = mappings_.upper_bound(at);
  if (next == mappings_.begin()) return {};
  const auto& [start, mapping] = *std::prev(next);
  const auto inside = static_cast<std::uint64_t>(at - start);
  if (inside >= mapping.bytes) return {};
  return {mapping.file, mapping.offset + inside};
}

bool PageFiles::holds(const void* address) { return find(address).file != nullptr; }

void PageFiles::begin_write(const void* memory, std::uint64_t bytes) {
  const Place place = find(memory);
  if (place.file == nullptr) return;
  sync_file_range(place.file->descriptor(), static_cast<off_t>(place.offset), static_cast<off_t>(bytes),
                  SYNC_FILE_RANGE_WRITE);
}

}  // namespace octavo
