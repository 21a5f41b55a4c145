// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace octavo {

/// Rank 0 of a world in which every other rank sends back what it receives. Benchmarks run the work of one rank among
/// many on it, without the others and without a network. Only exchanges that have room for as much as is sent work.
class EchoBackend final : public c10d::Backend {
 public:
  explicit EchoBackend(int world_size) : Backend(0, world_size) {}

  const std::string getBackendName() const override { return "echo"; }

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<std::int64_t>& received, std::vector<std::int64_t>& sent,
                                               const c10d::AllToAllOptions&) override {
    for (std::size_t rank = 0; rank < sent.size(); ++rank) {
      TORCH_CHECK(received[rank] >= sent[rank], "[comm.echo_backend] expected room for ", sent[rank],
                  " bytes from rank ", rank, ", which it is sent, got ", received[rank],
                  ": the elements of a tensor must be a multiple of 64 for each rank");
    }
    return c10::make_intrusive<Echo>(output, input, received, sent);
  }

 private:
  /// The answer arrives when it is waited for, so that what a rank does before is timed without it.
  class Echo final : public c10d::Work {
   public:
    Echo(at::Tensor output, at::Tensor input, std::vector<std::int64_t> received, std::vector<std::int64_t> sent)
        : output_(std::move(output)),
          input_(std::move(input)),
          received_(std::move(received)),
          sent_(std::move(sent)) {}

    bool wait(std::chrono::milliseconds) override {
      auto* room = static_cast<std::uint8_t*>(output_.mutable_data_ptr());
      const auto* message = static_cast<const std::uint8_t*>(input_.const_data_ptr());
      for (std::size_t rank = 0; rank < sent_.size(); ++rank) {
        std::memcpy(room, message, static_cast<std::size_t>(sent_[rank]));
        room += received_[rank];
        message += sent_[rank];
      }
      return true;
    }

   private:
    at::Tensor output_, input_;
    std::vector<std::int64_t> received_, sent_;
  };
};

}  // namespace octavo
