// SPDX-License-Identifier: Apache-2.0
#include "octavo/kernels/page_files.h"

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <iterator>
#include <sys/mman.h>
#include <unistd.h>

#include "octavo/kernels/error.h"

namespace octavo {

namespace {

/// A file of the directory that goes with the process, however that ends; -1 where there can be none.
int open_nameless(const std::string& directory) {
#if defined(O_TMPFILE)
  const int file = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;  // some file systems do not have it
#endif
  std::string name = directory + "/octavo-XXXXXX";
  const int named = mkstemp(name.data());
  if (named < 0) return named;
  fcntl(named, F_SETFD, FD_CLOEXEC);
  unlink(name.c_str());
  return named;
}

}  // namespace

/// Ranges of a file, each for one mapping. A range that is given back becomes a hole, for the next mapping of its size.
class PageFiles::File {
 public:
  explicit File(const std::string& directory) : file_(open_nameless(directory)) {
    if (file_ >= 0) return;
    fail(ErrorCode::invalid_argument, "kernels.managed", "expected a directory in which a file can be made, got '",
         directory, "': ", std::strerror(errno));
  }
  ~File() { close(file_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int descriptor() const { return file_; }
  bool is_own() const { return owner_ == getpid(); }

  /// Memory of a range of zeros, and where the range is; null where the disk is full.
  std::pair<void*, std::uint64_t> map(std::uint64_t bytes) {
    const auto hole = holes_.find(bytes);
    const std::uint64_t offset = hole == holes_.end() ? end_ : hole->second;
    const auto first = static_cast<off_t>(offset), size = static_cast<off_t>(bytes);
    // Room is taken now: where the disk is full later, a write to a page that has none ends the process.
    int error = EINTR;
    while (error == EINTR) error = posix_fallocate(file_, first, size);
    const bool has_room = error == 0;
    void* memory = has_room ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, first) : MAP_FAILED;
    if (memory == MAP_FAILED) {
      make_hole(offset, bytes);
      return {nullptr, offset};
    }
    if (hole == holes_.end())
      end_ += bytes;
    else
      holes_.erase(hole);
    return {memory, offset};
  }

  /// A range that cannot be made a hole is not zero any more, and not used again.
  void give_back(std::uint64_t offset, std::uint64_t bytes) {
    if (make_hole(offset, bytes)) holes_.emplace(bytes, offset);
  }

 private:
  bool make_hole(std::uint64_t offset, std::uint64_t bytes) const {
    const auto first = static_cast<off_t>(offset), size = static_cast<off_t>(bytes);
    return fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, first, size) == 0;
  }

  const int file_;
  const pid_t owner_ = getpid();
  std::uint64_t end_ = 0;                              // of all ranges
  std::multimap<std::uint64_t, std::uint64_t> holes_;  // by size
};

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
  munmap(memory, mapping.bytes);
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
