// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/shared/peer_process.h"

#include <cerrno>
#include <csignal>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

namespace octavo {

PeerProcess::PeerProcess(std::int64_t id) : id_(id) {
#if defined(SYS_pidfd_open)
  if (id_ != getpid()) descriptor_ = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(id_), 0));
#endif
}

PeerProcess::~PeerProcess() {
  if (descriptor_ >= 0) close(descriptor_);
}

PeerProcess::PeerProcess(PeerProcess&& other) noexcept
    : id_(other.id_), descriptor_(std::exchange(other.descriptor_, -1)) {}

bool PeerProcess::has_ended() const {
  if (id_ == getpid()) return false;
  if (descriptor_ < 0) return kill(static_cast<pid_t>(id_), 0) != 0 && errno == ESRCH;
  pollfd ended{descriptor_, POLLIN, 0};
  return poll(&ended, 1, 0) > 0;
}

}  // namespace octavo
