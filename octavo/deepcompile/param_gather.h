// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "octavo/codec/codec.h"
#include "octavo/comm/schedule/gather_shards.h"
#include "octavo/comm/wire.h"
#include "octavo/deepcompile/flags.h"
#include "octavo/deepcompile/param_registry.h"
#include "octavo/export.h"

namespace octavo::dc {

/// The gather of whole parameters from the shards that ranks have of them (Ownership::equal_ranges), for all graphs of
/// an engine. Several gathers may be under way; start() waits for the oldest where many were started after it. Not
/// thread-safe; all ranks make the calls in the same order. Throws what Wire throws.
class OCTAVO_API ParamGather {
 public:
  /// A transfer of several parameters has at most `most_elements` elements. `codec` encodes the values that are sent;
  /// null: they are sent unchanged. `flags` are the engine's.
  ParamGather(std::unique_ptr<Wire> wire, std::shared_ptr<DSParamRegistry> registry, std::uint64_t most_elements,
              CodecPtr codec = nullptr, std::shared_ptr<const Flags> flags = std::make_shared<Flags>());
  ~ParamGather();

  /// Returns the dtype of each parameter's whole values: the one in `dtypes`, or its own where `dtypes` is empty.
  /// Throws Error invalid_argument for another number of dtypes.
  std::vector<at::ScalarType> dtypes_of(std::span<const long> ids, std::span<const at::ScalarType> dtypes) const;
  /// Whether the parameter's whole values are valid or on their way, in a dtype that can be converted to `dtype` as the
  /// shards can: `dtype` itself, or the parameter's own.
  bool has(long id, at::ScalarType dtype) const;
  /// Starts a transfer for those of the parameters of which it does not have the whole values, or several where they
  /// have too many elements for one; of these it waits for all but the last two. `dtypes` and errors are those of
  /// dtypes_of(). Waits, too, where values are on their way in a dtype from which those that are wanted cannot be made.
  void start(std::span<const long> ids, std::span<const at::ScalarType> dtypes = {});
  /// Waits until the parameter's whole values, and those of the same transfer, are there. Does nothing where they are.
  void wait(long id);
  /// Waits for all that are on their way.
  void wait_all();

  std::uint64_t sent_bytes() const { return wire_->sent_bytes(); }

 private:
  struct Flight;
  struct Wanted {
    long id;
    at::ScalarType dtype;
  };

  void start_flight(std::span<const Wanted> needed);
  void end_flights(const std::vector<long>& firsts);
  at::Tensor make_room(const DSParam& param, at::ScalarType dtype) const;
  Contribution contribution(const at::Tensor& whole) const;
  std::unique_ptr<GatherShards> take_schedule(c10::Device device);
  std::string context(const std::vector<long>& ids) const;

  std::unique_ptr<Wire> wire_;
  std::shared_ptr<DSParamRegistry> registry_;
  std::uint64_t most_elements_;
  CodecPtr codec_;
  std::shared_ptr<const Flags> flags_;
  std::uint64_t started_ = 0;
  std::vector<std::unique_ptr<Flight>> flights_;
  std::vector<std::pair<c10::Device, std::unique_ptr<GatherShards>>> idle_;
};

}  // namespace octavo::dc
