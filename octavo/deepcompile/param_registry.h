// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "octavo/deepcompile/parameter.h"
#include "octavo/export.h"

namespace octavo::dc {

/// Where the whole values of a parameter are between its shards and its users.
enum class Gathered {
  sharded,    // nowhere
  in_flight,  // a collective writes them
  available,  // in the memory of registerGatheredParam()
  released,   // no longer in memory
};

/// The state of an engine's gradients between two changes of its parameters, for all graphs together.
struct Accumulation {
  std::unordered_map<long, bool> reduced;      // whether a parameter's buffer holds a sum already
  std::unordered_map<long, int> averages;      // by parameter: how many averages that sum is of
  std::unordered_map<long, at::Tensor> local;  // stage 1: this rank's own sums, which wait for the last micro-batch

  void forget_reduced() {
    reduced.clear();
    averages.clear();
  }
};

/// The parameters of an engine by id, and the whole values of those that are gathered. Every change of a state is
/// checked; where it is refused, Error invalid_argument names the parameter and nothing has changed. Not thread-safe.
///
/// Gathered values may be there and yet be those of an earlier step: they are *valid* until the shards change, and
/// stale afterwards. A change that torch knows of, such as copy_() to a shard's tensor, is seen without a call; all
/// ranks must make it, also one whose shard is empty, because they gather together. Other changes must be told by
/// setValid() or invalidateAll().
class OCTAVO_API DSParamRegistry {
 public:
  DSParamRegistry() = default;
  ~DSParamRegistry();
  DSParamRegistry(const DSParamRegistry&) = delete;
  DSParamRegistry& operator=(const DSParamRegistry&) = delete;

  /// Registers a parameter; takes what the constructor of DSParam takes. Zeros the gradient buffer. Throws for an id
  /// that is taken.
  void registerParam(long ds_id, const std::vector<std::int64_t>& ds_shape, at::Tensor ds_tensor,
                     at::Tensor grad_buffer, bool partitioned, std::int64_t offset, bool persistent);
  const DSParam& getParam(long ds_id) const { return at(ds_id).param; }
  bool hasParam(long ds_id) const { return entries_.contains(ds_id); }
  /// Replaces the buffer of the reduced gradient, which is not zeroed; undefined: it has none.
  void setGradBuffer(long ds_id, at::Tensor grad_buffer) { at(ds_id).param.setGradBuffer(std::move(grad_buffer)); }
  /// Sets the name that errors use; "parameter ID" where none was given.
  void setName(long ds_id, std::string name) { at(ds_id).name = std::move(name); }
  std::string nameOf(long ds_id) const;
  void setPersistent(long ds_id, bool persistent) { at(ds_id).param.setPersistent(persistent); }
  void offload(long ds_id) { at(ds_id).param.offload(); }
  void reload(long ds_id) { at(ds_id).param.reload(); }
  /// Brings all parameters that were sent to the host back: their values may change then.
  void restore();
  /// Waits, on the calling thread, for all that is on its way to the host.
  void waitOffloads() const;
  /// Waits for the devices of all parameters.
  void synchronizeDevices() const;
  /// The bytes of the device's memory that offloaded parameters have given up.
  std::int64_t offloadedBytes() const;

  Accumulation& accumulation() { return accumulation_; }

  // ---- whole values

  Gathered state(long ds_id) const { return at(ds_id).state; }
  /// Registers memory for the whole values, in place of what was registered before. `ds_tensor` has at least
  /// the parameter's elements, in any shape; gathers use it where it has exactly these, in row-major order.
  /// `made_here`: it was made for a gather, and is nobody else's. Refused while a collective writes the memory of
  /// before.
  void registerGatheredParam(long ds_id, at::Tensor ds_tensor, bool made_here = false);
  /// Throws Error invalid_argument unless `ds_tensor` is on the device and has at least so many elements.
  /// registerGatheredParam() checks this, too; it is for a caller that must know before it registers anything.
  static void requireWhole(long ds_id, std::int64_t elements, c10::Device device, const at::Tensor& ds_tensor);
  /// Releases the whole values, which are then no longer valid. Where the parameter is `sharded`, nothing else happens.
  /// Refused while a collective writes them (wait for it first), and where they were released before.
  void unregisterGatheredParam(long ds_id);
  /// Does the same, and frees the memory where a gather has made it (`made_here`): whoever reads a tensor in it from
  /// then on gets c10::Error (forbid_access). Where torch cannot say so, the memory stays as long as such a tensor
  /// does.
  void releaseGatheredParam(long ds_id);
  /// Returns the whole values. Refused where there are none.
  const at::Tensor& getGatheredParam(long ds_id) const;
  /// Refused unless the whole values are there, and no collective writes them.
  void requireGathered(long ds_id) const;
  bool hasGatheredParam(long ds_id) const { return at(ds_id).gathered.defined(); }
  /// beginGather(): a collective now writes the registered memory; endGather(): it has been waited for. In between,
  /// access to a shard's whole values throws c10::Error (forbid_access), unless other values lie in the same memory or
  /// a compiled graph holds it.
  void beginGather(long ds_id);
  void endGather(long ds_id);

  void setValid(long ds_id, bool valid);
  bool isValid(long ds_id) const { return at(ds_id).is_valid(); }
  /// Whether no gather is needed: the values are valid, or a collective writes them and the shards are as they were
  /// when it began.
  bool isThereOrComing(long ds_id) const { return at(ds_id).is_valid() || at(ds_id).comes(); }
  /// Marks all whole values as stale, because the shards have changed.
  void invalidateAll();

 private:
  struct Entry {
    DSParam param;
    Gathered state = Gathered::sharded;
    at::Tensor gathered = {};
    bool made_here = false;                    // whether a gather has made this memory, which is then nobody else's
    bool valid = false, turned_stale = false;  // the latter while a collective writes
    std::int64_t version = 0;                  // of the shard whose values were gathered
    std::string name = {};

    bool is_valid() const { return valid && version == param.getVersion(); }
    bool comes() const { return state == Gathered::in_flight && !turned_stale && version == param.getVersion(); }
  };

  /// Throws for an id that was not registered.
  const Entry& at(long ds_id) const;
  Entry& at(long ds_id) { return const_cast<Entry&>(std::as_const(*this).at(ds_id)); }

  std::unordered_map<long, Entry> entries_;
  Accumulation accumulation_;
};

}  // namespace octavo::dc
