// SPDX-License-Identifier: Apache-2.0
#include "octavo/comm/shared/shared_blocks.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "octavo/kernels/round_up.h"

namespace octavo {

namespace {

/// Rounds up to pages, so that what one rank writes and another one reads at the same time shares no cache line.
std::uint64_t whole_pages(std::uint64_t bytes) {
  constexpr std::uint64_t kPage = 4096;
  return round_up(std::max<std::uint64_t>(bytes, 1), kPage);
}

}  // namespace

SharedBlocks::SharedBlocks(std::shared_ptr<MemoryFile> file, std::uint64_t first)
    : file_(std::move(file)), end_(whole_pages(first)) {}

at::Tensor SharedBlocks::allocate(std::uint64_t bytes) {
  const std::uint64_t size = whole_pages(bytes), offset = take(size);
  return at::for_blob(file_->data() + offset, {static_cast<std::int64_t>(bytes)})
      .options(at::TensorOptions(at::kByte))
      .deleter([self = shared_from_this(), offset, size](void*) { self->give_back(offset, size); })
      .make_tensor();
}

/// Takes the first free block that is large enough, in the order of offsets, so that the file stays short.
std::uint64_t SharedBlocks::take(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(free_, [&](const auto& block) { return block.second >= bytes; });
  if (found == free_.end()) {
    const bool ends_free = !free_.empty() && free_.rbegin()->first + free_.rbegin()->second == end_;
    const std::uint64_t from = ends_free ? free_.rbegin()->first : end_;
    file_->grow(from + bytes);
    if (ends_free) free_.erase(from);
    end_ = from + bytes;
    return from;
  }
  const auto [offset, size] = *found;
  free_.erase(found);
  if (size > bytes) free_.emplace(offset + bytes, size - bytes);
  return offset;
}

void SharedBlocks::give_back(std::uint64_t offset, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  auto block = free_.emplace(offset, bytes).first;
  const auto next = std::next(block);
  if (next != free_.end() && next->first == offset + bytes) {
    block->second += next->second;
    free_.erase(next);
  }
  if (block == free_.begin()) return;
  const auto before = std::prev(block);
  if (before->first + before->second != offset) return;
  before->second += block->second;
  free_.erase(block);
}

bool SharedBlocks::contains(const at::Tensor& tensor) const {
  const auto* const first = static_cast<const std::uint8_t*>(tensor.const_data_ptr());
  return tensor.is_cpu() && first >= file_->data() && first + tensor.nbytes() <= file_->data() + file_->name().capacity;
}

std::uint64_t SharedBlocks::offset_of(const void* address) const {
  return static_cast<std::uint64_t>(static_cast<const std::uint8_t*>(address) - file_->data());
}

}  // namespace octavo
