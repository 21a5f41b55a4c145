// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/default_engine.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <utility>

#include "octavo/kernels/error.h"

namespace octavo::dc {

/// The engine is never destroyed: at the end of a process what it refers to in torch is destroyed before.
Engine& default_engine() {
  static auto* const engine = new Engine;
  return *engine;
}

c10::intrusive_ptr<c10d::ProcessGroup>& process_group = default_engine().process_group;
std::shared_ptr<DSParamRegistry>& param_registry = default_engine().param_registry;
std::shared_ptr<DoubleBufferedReduceBucket>& reduce_buckets = default_engine().reduce_buckets;
std::unordered_map<long, std::shared_ptr<CustomOpExecutor>>& executors = default_engine().executors;
SymmetricMemoryPtr& symm_mem = default_engine().symm_mem;

bool& use_symm_mem = default_engine().use_symm_mem;
bool& profile = default_engine().flags->profile;
bool& pre_div_reduce = default_engine().flags->pre_div_reduce;
std::int64_t& free_activation_threshold = default_engine().flags->free_activation_threshold;
bool& sync_before_reduce = default_engine().flags->sync_before_reduce;
bool& sync_after_reduce = default_engine().flags->sync_after_reduce;
bool& sync_before_allgather = default_engine().flags->sync_before_allgather;
bool& sync_after_allgather = default_engine().flags->sync_after_allgather;
bool& offload_activation_pin_memory = default_engine().flags->offload_activation_pin_memory;

void init(c10::intrusive_ptr<c10d::ProcessGroup> group, EngineOptions config, std::int64_t bucket_size) {
  if (!group) fail(ErrorCode::invalid_argument, "deepcompile.init", "expected a process group, got none");
  const std::vector<c10::Device> devices = group->getDeviceTypes();
  if (std::ranges::find(devices, c10::Device(c10::kCPU)) == devices.end()) {
    fail(ErrorCode::unsupported, "deepcompile.init",
         "expected a process group that also sends memory of the CPU, such ",
         "as init_process_group(\"cpu:gloo,cuda:nccl\") makes: Octavo's messages lie there");
  }
  auto backend = group->getBackend(c10::kCPU);
  default_engine().init(std::move(group), std::move(backend), bucket_size, std::move(config));
}

at::Tensor test_call(at::Tensor a) { return a.clone(); }

}  // namespace octavo::dc
