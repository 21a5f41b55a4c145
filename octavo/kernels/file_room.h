// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fcntl.h>

namespace octavo {

/// Takes room for `bytes` bytes of a file from `first` on, as posix_fallocate() does, and returns the error of that, 0
/// where there is room for all of them. A signal interrupts posix_fallocate(), which then begins again: the room is
/// taken in pieces, so that it is found though a profiler sends a signal every few milliseconds.
inline int take_file_room(int file, std::uint64_t first, std::uint64_t bytes) {
  constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20U;
  int error = 0;
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
