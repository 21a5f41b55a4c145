// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fcntl.h>
#include <sys/statvfs.h>

namespace octavo {

/// Whether the file system may have that much room beside what it reserves for the system. Some, such as those of
/// memory, do not say how much they have.
inline bool may_have_room(int file, std::uint64_t bytes) {
  struct statvfs disk;
  if (fstatvfs(file, &disk) != 0 || disk.f_blocks == 0 || disk.f_frsize == 0) return true;
  return bytes / disk.f_frsize <= disk.f_bavail;
}

/// Takes room for `bytes` bytes of a file from `first` on, as posix_fallocate() does, and returns the error of that, 0
/// where there is room for all of them. `new_bytes` of them have no room yet. Where the file system has less than that,
/// nothing is taken: until posix_fallocate() gave up, all other programs would find a full disk. A signal interrupts
/// posix_fallocate(), which then begins again: the room is taken in pieces, so that it is found though a profiler sends
/// a signal every few milliseconds.
inline int take_file_room(int file, std::uint64_t first, std::uint64_t bytes, std::uint64_t new_bytes) {
  constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20U;
  int error = may_have_room(file, new_bytes) ? 0 : ENOSPC;
  for (std::uint64_t taken = 0; taken < bytes && error == 0; taken += kPieceBytes) {
    const auto offset = static_cast<off_t>(first + taken);
    const auto piece = static_cast<off_t>(std::min(kPieceBytes, bytes - taken));
    do {
      error = posix_fallocate(file, offset, piece);
    } while (error == EINTR);
  }
  return error;
}

}  // namespace octavo
