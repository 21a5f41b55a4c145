// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdint>
#include <cstring>
#include <vector>

namespace octavo {

/// Rank 0 of a world in which every other rank answers what it is sent: the work of one rank among many, without the
/// others and without a network, for benchmarks. Only exchanges with room for as much as is sent.
class EchoBackend final : public c10d::Backend {
 public:
  explicit EchoBackend(int world_size) : Backend(0, world_size) {}

  const std::string getBackendName() const override { return "echo"; }

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<std::int64_t>& received, std::vector<std::int64_t>& sent,
                                               const c10d::AllToAllOptions&) override {
    auto* room = static_cast<std::uint8_t*>(output.mutable_data_ptr());
    const auto* message = static_cast<const std::uint8_t*>(input.const_data_ptr());
    for (std::size_t rank = 0; rank < sent.size(); ++rank) {
      TORCH_CHECK(received[rank] >= sent[rank], "[comm.echo_backend] expected room for ", sent[rank],
                  " bytes from rank ", rank, ", which it is sent, got ", received[rank],
                  ": the elements of a tensor must be a multiple of 64 for each rank");
      std::memcpy(room, message, static_cast<std::size_t>(sent[rank]));
      room += received[rank];
      message += sent[rank];
    }
    return c10::make_intrusive<Done>();
  }

 private:
  struct Done final : c10d::Work {
    bool wait(std::chrono::milliseconds) override { return true; }
  };
};

}  // namespace octavo
