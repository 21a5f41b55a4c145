// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

/// Error-feedback residuals of one tensor for a world of another size.
///
/// In a world of W ranks each element has an owner; the other W-1 ranks keep what they did not send to it, and the
/// owner keeps what its encoding of the average left out. What is still owed to the average is therefore the sum of the
/// senders' residuals over W, plus the owner's. Both functions preserve it: the next steps send it, in the new world.
namespace octavo {

/// What rank `rank` of `world_size` has to keep as a sender: bfloat16[sent_part(count, rank, world_size).count], equal
/// on all ranks where they send the same element. `residuals[r]`: what rank r of the old world, of residuals.size()
/// ranks, kept as a sender (bfloat16 of its sent_part), undefined where it kept nothing. A world of one rank sends
/// nothing: the result is then empty, and what was owed is lost.
at::Tensor redistribute_sent(const std::vector<at::Tensor>& residuals, std::uint64_t count, int rank, int world_size);

/// What it has to keep as an owner: bfloat16[owned_range(count, rank, world_size).count].
at::Tensor redistribute_owned(const std::vector<at::Tensor>& residuals, std::uint64_t count, int rank, int world_size);

/// What every rank has to keep where ranks send all elements: bfloat16[count], what the old ranks owed on average.
at::Tensor redistribute_whole(const std::vector<at::Tensor>& residuals, std::uint64_t count, int rank, int world_size);

/// What was the same on all ranks, of any dtype and size.
at::Tensor redistribute_shared(const std::vector<at::Tensor>& values, std::uint64_t count, int rank, int world_size);

}  // namespace octavo
