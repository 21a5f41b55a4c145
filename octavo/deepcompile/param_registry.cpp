// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/param_registry.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <unordered_set>
#include <utility>

#include "octavo/deepcompile/memory_access.h"
#include "octavo/deepcompile/text.h"
#include "octavo/device/stream_event.h"
#include "octavo/kernels/error.h"

namespace octavo::dc {

namespace {

const char* name_of(Gathered state) {
  switch (state) {
    case Gathered::sharded: return "sharded";
    case Gathered::in_flight: return "being gathered";
    case Gathered::available: return "gathered";
    case Gathered::released: return "released";
  }
  return "";
}

[[noreturn]] void refuse(long ds_id, Gathered state, const char* what) {
  fail(ErrorCode::invalid_argument, "deepcompile.registry", "parameter ", ds_id, " is ", name_of(state), ": ", what);
}

/// Whether the tensor has all of its storage's memory.
bool has_all_of_its_memory(const at::Tensor& tensor) { return tensor.storage().nbytes() == tensor.nbytes(); }

}  // namespace

/// Gives memory of what was not waited for, as after an error, back to a program that has given it. Other memory stays
/// forbidden: its values have not come.
DSParamRegistry::~DSParamRegistry() {
  for (const auto& [id, entry] : entries_) {
    if (entry.state == Gathered::in_flight && !entry.made_here) allow_access(entry.gathered);
  }
}

std::string DSParamRegistry::nameOf(long ds_id) const {
  const std::string& name = at(ds_id).name;
  return name.empty() ? "parameter " + std::to_string(ds_id) : name;
}

const DSParamRegistry::Entry& DSParamRegistry::at(long ds_id) const {
  const auto found = entries_.find(ds_id);
  if (found != entries_.end()) return found->second;
  fail(ErrorCode::invalid_argument, "deepcompile.registry", "no parameter ", ds_id, " is registered; ", entries_.size(),
       " others are");
}

void DSParamRegistry::registerParam(long ds_id, const std::vector<std::int64_t>& ds_shape, at::Tensor ds_tensor,
                                    at::Tensor grad_buffer, bool partitioned, std::int64_t offset, bool persistent) {
  if (hasParam(ds_id)) {
    fail(ErrorCode::invalid_argument, "deepcompile.registry", "parameter ", ds_id, " is registered already, as [",
         join_as_str(getParam(ds_id).getShape(), ", "), "]: ids are unique in an engine");
  }
  DSParam param(ds_id, ds_shape, std::move(ds_tensor), std::move(grad_buffer), partitioned, offset, persistent);
  if (param.getGradBuffer().defined()) param.getGradBuffer().zero_();
  entries_.emplace(ds_id, Entry{std::move(param)});
}

/// All values are on their way before any are waited for.
void DSParamRegistry::restore() {
  for (auto& [id, entry] : entries_) entry.param.reload();
  for (auto& [id, entry] : entries_) {
    entry.param.getDSTensor();
    entry.param.touch();
  }
}

void DSParamRegistry::waitOffloads() const {
  for (const auto& [id, entry] : entries_) entry.param.waitOffload();
}

void DSParamRegistry::synchronizeDevices() const {
  std::unordered_set<c10::Device> devices;
  for (const auto& [id, entry] : entries_) devices.insert(entry.param.getDevice());
  for (const c10::Device device : devices) synchronize(device);
}

std::int64_t DSParamRegistry::offloadedBytes() const {
  std::int64_t bytes = 0;
  for (const auto& [id, entry] : entries_) bytes += entry.param.isOffloaded() ? entry.param.bytes() : 0;
  return bytes;
}

void DSParamRegistry::registerGatheredParam(long ds_id, at::Tensor ds_tensor, bool made_here) {
  Entry& entry = at(ds_id);
  if (entry.state == Gathered::in_flight) refuse(ds_id, entry.state, "wait for it before its memory is replaced");
  const auto elements = static_cast<std::int64_t>(productDim(entry.param.getShape()));
  requireWhole(ds_id, elements, entry.param.getDevice(), ds_tensor);
  entry.made_here = made_here || (entry.made_here && entry.gathered.is_same(ds_tensor));
  entry.gathered = std::move(ds_tensor);
  entry.state = Gathered::available;
  entry.valid = false;
}

void DSParamRegistry::requireWhole(long ds_id, std::int64_t elements, c10::Device device, const at::Tensor& ds_tensor) {
  if (!ds_tensor.defined()) {
    fail(ErrorCode::invalid_argument, "deepcompile.registry", "expected memory for the whole values of parameter ",
         ds_id, ", got an undefined tensor");
  }
  if (ds_tensor.numel() < elements || ds_tensor.device() != device) {
    fail(ErrorCode::invalid_argument, "deepcompile.registry", "expected memory for ", elements,
         " elements of parameter ", ds_id, " on ", device.str(), ", got ", ds_tensor.numel(), " on ",
         ds_tensor.device().str());
  }
}

void DSParamRegistry::unregisterGatheredParam(long ds_id) {
  Entry& entry = at(ds_id);
  if (entry.state == Gathered::in_flight) refuse(ds_id, entry.state, "wait for it before it is released");
  if (entry.state == Gathered::released) refuse(ds_id, entry.state, "it can be released once for each gather");
  entry.valid = false;
  if (entry.state == Gathered::sharded) return;
  entry.gathered.reset();
  entry.made_here = false;
  entry.state = Gathered::released;
}

/// Records the use of the memory: the current stream may have work left with memory that another stream has made.
void DSParamRegistry::releaseGatheredParam(long ds_id) {
  const at::Tensor made = at(ds_id).made_here ? at(ds_id).gathered : at::Tensor();
  unregisterGatheredParam(ds_id);
  if (!made.defined() || !can_forbid_access() || !has_all_of_its_memory(made)) return;
  c10::StorageImpl& storage = *made.storage().unsafeGetStorageImpl();
  c10::impl::VirtualGuardImpl(made.device().type())
      .recordDataPtrOnStream(storage.data_ptr(), current_stream_of(made.device()));
  storage.set_data_ptr_noswap(at::DataPtr(nullptr, made.device()));
  storage.set_nbytes(0);
  forbid_access(made, "[deepcompile.registry] " + nameOf(ds_id) +
                          " was released, and its memory is freed: gather it again (allgather_param, " +
                          "wait_allgather) before it is used");
}

const at::Tensor& DSParamRegistry::getGatheredParam(long ds_id) const {
  const Entry& entry = at(ds_id);
  if (!entry.gathered.defined()) refuse(ds_id, entry.state, "it has no whole values: gather it first");
  return entry.gathered;
}

void DSParamRegistry::requireGathered(long ds_id) const {
  getGatheredParam(ds_id);
  if (state(ds_id) == Gathered::in_flight) refuse(ds_id, Gathered::in_flight, "wait for it before it is released");
}

void DSParamRegistry::beginGather(long ds_id) {
  Entry& entry = at(ds_id);
  if (entry.state == Gathered::in_flight) refuse(ds_id, entry.state, "one gather at a time");
  if (entry.state != Gathered::available) refuse(ds_id, entry.state, "register memory for its whole values first");
  entry.state = Gathered::in_flight;
  entry.turned_stale = false;
  entry.version = entry.param.getVersion();
  if (!entry.param.isPartitioned() || !has_all_of_its_memory(entry.gathered)) return;
  forbid_access(entry.gathered, "[deepcompile.registry] " + nameOf(ds_id) +
                                    " is on its way to this rank: wait for its " +
                                    "gather (wait_allgather, wait_params) before it is used");
}

void DSParamRegistry::endGather(long ds_id) {
  Entry& entry = at(ds_id);
  if (entry.state != Gathered::in_flight) refuse(ds_id, entry.state, "there is no gather to wait for");
  allow_access(entry.gathered);
  entry.state = Gathered::available;
  entry.valid = !entry.turned_stale;
}

void DSParamRegistry::setValid(long ds_id, bool valid) {
  Entry& entry = at(ds_id);
  entry.valid = valid;
  entry.turned_stale = !valid;
  entry.version = entry.param.getVersion();
}

void DSParamRegistry::invalidateAll() {
  for (auto& [id, entry] : entries_) setValid(id, false);
}

}  // namespace octavo::dc
