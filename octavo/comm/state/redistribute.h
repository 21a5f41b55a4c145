// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "octavo/comm/layout.h"

/// What is kept of one tensor from step to step, for a world of another size.
///
/// In a world of W ranks each element has an owner; the other W-1 ranks keep what they did not send to it, and the
/// owner keeps what its encoding of the average left out. What is still owed to the average is therefore the sum of the
/// senders' residuals over W, plus the owner's. Redistribution preserves it: the next steps send it, in the new world,
/// in which `ownership` is what it was.
///
/// Of what each rank has of the whole tensor every new rank gets the mean, and so the average over ranks stays. Of
/// estimates every new sender and its owner get the mean of the old ones, formed by the same sums: the same bits.
namespace octavo {

enum class Extent;

/// But of Extent::shared: how many elements rank `rank` of `world_size` keeps of a tensor of `count`.
std::uint64_t count_of(Extent extent, std::uint64_t count, int rank, int world_size,
                       Ownership ownership = Ownership::even());

/// Whether what the ranks kept serves a new world. Of estimates every part must be there, where there are elements of
/// it: without one, senders and owners would have other means.
bool is_usable(Extent extent, const std::vector<at::Tensor>& kept, std::uint64_t count,
               Ownership ownership = Ownership::even());

/// What rank `rank` of `world_size` has to keep: [count_of()] of the dtype of `kept`. `kept[r]`: what rank r of the old
/// world, of kept.size() ranks, kept; undefined where it kept nothing, as in a world of one rank, in which nothing is
/// sent; what was owed is then lost. Not all are undefined.
at::Tensor redistribute(Extent extent, const std::vector<at::Tensor>& kept, std::uint64_t count, int rank,
                        int world_size, Ownership ownership = Ownership::even());

/// What a rank keeps of some elements of a tensor of `count`, each in its place: [range.count], float32, a new tensor
/// on the device of `sent`, 0 where nothing is kept. `sent`: of the ranges of others (Extent::sent), `own`: of its own
/// (Extent::own_contribution); one of them may be undefined.
at::Tensor in_their_places(Range range, const at::Tensor& sent, const at::Tensor& own, std::uint64_t count, int rank,
                           int world_size, Ownership ownership = Ownership::even());

}  // namespace octavo
