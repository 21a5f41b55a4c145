// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace octavo {

/// A process of this host, to know when it has ended: also where another one has its number by then.
class PeerProcess {
 public:
  explicit PeerProcess(std::int64_t id);
  ~PeerProcess();
  PeerProcess(PeerProcess&& other) noexcept;
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  std::int64_t id() const { return id_; }
  /// Never of the calling process.
  bool has_ended() const;

 private:
  std::int64_t id_;
  int descriptor_ = -1;  // -1: the system gives none
};

}  // namespace octavo
