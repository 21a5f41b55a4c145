// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/state/state_memory.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "octavo/device/huge_pages.h"
#include "octavo/kernels/error.h"

namespace octavo {

StateMemory::StateMemory(StatePaging paging) : is_paged_(paging.is_paged) {
  if (paging.directory.empty()) return;
  if (!is_paged_) {
    fail(ErrorCode::invalid_argument, "comm.state_memory", "files are for paged states: expected no directory, or ",
         "paging, got '", paging.directory, "'");
  }
  files_ = Arena::make({.directory = std::move(paging.directory)});
  files_->empty({1}, at::kByte);  // fails now rather than in a step
}

std::shared_ptr<Arena> StateMemory::arena_on(c10::Device device) const {
  return device.is_cpu() && files_ ? files_ : Arena::of(device);
}

at::Tensor StateMemory::empty(std::uint64_t count, at::ScalarType dtype, c10::Device device) const {
  const auto size = static_cast<std::int64_t>(count);
  if (is_paged_) return arena_on(device)->empty({size}, dtype);
  if (device.is_cpu()) return empty_on_huge_pages(count, dtype);
  return at::empty({size}, at::TensorOptions(dtype).device(device));
}

at::Tensor StateMemory::copy(const at::Tensor& values, c10::Device device) const {
  at::Tensor ours = empty(static_cast<std::uint64_t>(values.numel()), values.scalar_type(), device);
  return ours.copy_(values.detach().reshape(-1));
}

bool StateMemory::moves(const at::Tensor& tensor) const { return is_paged_ && tensor.defined() && !tensor.is_cpu(); }

void StateMemory::prefetch(const at::Tensor& tensor) const {
  if (moves(tensor)) octavo::prefetch(tensor);
}

void StateMemory::evict(const at::Tensor& tensor) const {
  if (moves(tensor)) octavo::evict(tensor);
}

}  // namespace octavo
