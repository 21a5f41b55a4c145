// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace octavo {

/// A process of this host. It knows when the process has ended, also where another process has got its id by then.
class PeerProcess {
 public:
  explicit PeerProcess(std::int64_t id);
  ~PeerProcess();
  PeerProcess(PeerProcess&& other) noexcept;
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  std::int64_t id() const { return id_; }
  /// Whether the process has ended; false for the calling process.
  bool has_ended() const;

 private:
  std::int64_t id_;
  int descriptor_ = -1;  // -1: the system gives none
};

}  // namespace octavo
