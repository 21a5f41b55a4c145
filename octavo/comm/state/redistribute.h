// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "octavo/comm/ownership.h"

/// What is kept of one tensor from step to step, redistributed over a world of another size.
///
/// In a world of W ranks each element has an owner. The other W-1 ranks keep what they did not send to it, and the
/// owner keeps what its encoding of the average left out. What is still owed to the average is therefore the sum of the
/// senders' residuals over W, plus the owner's. Redistribution preserves this sum: the next steps send it, in the new
/// world, where `ownership` is what it was.
///
/// Where each rank has values of its own for the whole tensor, every new rank gets the mean of them, and so the average
/// over ranks stays. Of estimates every new sender and its owner get the mean of the old ones, formed by the same sums,
/// so that the bits are the same.
namespace octavo {

enum class Extent;

/// Returns how many elements of a tensor of `count` rank `rank` of `world_size` keeps. Not for Extent::shared.
std::uint64_t count_of(Extent extent, std::uint64_t count, int rank, int world_size,
                       Ownership ownership = Ownership::even());

/// Whether a tensor is one end of an estimate.
bool is_estimate(Extent extent);

/// Whether what the ranks kept can be used in a new world. Every part of an estimate must be there, where there are
/// elements of it: if one were missing, senders and owners would have different means.
bool is_usable(Extent extent, const std::vector<at::Tensor>& kept, std::uint64_t count,
               Ownership ownership = Ownership::even());

/// Returns what rank `rank` of `world_size` has to keep: [count_of()] of the dtype of `kept`. `kept[r]`: what rank r of
/// the old world, of kept.size() ranks, kept. It is undefined where that rank kept nothing, as in a world of one rank,
/// in which nothing is sent; what was owed is then lost. At least one must be defined.
at::Tensor redistribute(Extent extent, const std::vector<at::Tensor>& kept, std::uint64_t count, int rank,
                        int world_size, Ownership ownership = Ownership::even());

/// Returns what a rank keeps of the elements `range` of a tensor of `count`, each in its place: [range.count], float32,
/// a new tensor on the device of `sent`, 0 where nothing is kept. `sent`: for the ranges of others (Extent::sent);
/// `own`: for the rank's own range (Extent::own_contribution). One of them may be undefined.
at::Tensor in_their_places(Range range, const at::Tensor& sent, const at::Tensor& own, std::uint64_t count, int rank,
                           int world_size, Ownership ownership = Ownership::even());

}  // namespace octavo
