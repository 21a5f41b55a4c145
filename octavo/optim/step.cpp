// SPDX-License-Identifier: Apache-2.0
#include "octavo/optim/step.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "octavo/kernels/round_up.h"
#include "octavo/optim/flat.h"
#include "octavo/optim/pager.h"
#include "octavo/optim/step_memory.h"

namespace octavo {

namespace {

constexpr std::int64_t kBlockElements = kStepBlock;
constexpr std::int64_t kGrainBlocks = kGrainElements / kBlockElements;

std::int64_t blocks_of(const FlatTensors& tensors) { return divide_up(tensors.count(), kBlockElements); }

/// Shares the blocks of some parameters, numbered through, out to threads.
void share_out(const std::vector<FlatTensors>& all, const MakeStep& make) {
  if (all.empty()) return;
  std::vector<std::int64_t> ends;
  for (const FlatTensors& one : all) ends.push_back((ends.empty() ? 0 : ends.back()) + blocks_of(one));
  const LaunchScope scope(all.front().device());
  for_parts(c10::kCPU, ends.back(), kGrainBlocks, [&](std::int64_t block, std::int64_t last) {
    auto i = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), block) - ends.begin());
    for (; block < last; ++i) {
      const std::int64_t begin = ends[i] - blocks_of(all[i]), end = std::min(ends[i], last);
      const std::int64_t first = (block - begin) * kBlockElements;
      const std::int64_t stop = std::min((end - begin) * kBlockElements, all[i].count());
      make(scope, all[i].parameter(), static_cast<std::uint64_t>(stop - first),
           all[i].operands().from(static_cast<std::uint64_t>(first)));
      block = end;
    }
  });
}

/// Returns, for each parameter, whether it has memory in common with another one.
std::vector<bool> sharing_memory(at::TensorList parameters) {
  struct Span {
    const std::uint8_t *begin, *end;
    std::size_t parameter;
  };
  std::vector<Span> spans;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto* const begin = static_cast<const std::uint8_t*>(parameters[i].const_data_ptr());
    if (parameters[i].numel() > 0) spans.push_back({begin, begin + parameters[i].nbytes(), i});
  }
  std::ranges::sort(spans, std::less<>(), &Span::begin);
  std::vector<bool> sharing(parameters.size());
  for (std::size_t i = 1, longest = 0; i < spans.size(); ++i) {  // `longest`: which of those before ends last
    if (spans[i].begin < spans[longest].end) sharing[spans[i].parameter] = sharing[spans[longest].parameter] = true;
    if (spans[i].end > spans[longest].end) longest = i;
  }
  return sharing;
}

/// Makes the step of all parameters that need no copies and share no memory at once, then of the others one by one:
/// copies of all of them could take more memory than their states, and threads would overwrite what others write.
void step_on_threads(const StepTensors& tensors, const MakeStep& make) {
  Copied copied(tensors);
  const std::vector<bool> sharing = sharing_memory(tensors.parameters);
  const auto is_empty = [&](std::size_t i) { return tensors.parameters[i].numel() == 0; };
  const auto is_alone = [&](std::size_t i) { return copied.is_copied[i] || sharing[i]; };
  std::vector<FlatTensors> together;
  for (std::size_t i = 0; i < tensors.parameters.size(); ++i) {
    if (!is_alone(i) && !is_empty(i)) together.emplace_back(tensors, i, nullptr);
  }
  share_out(together, make);
  for (std::size_t i = 0; i < tensors.parameters.size(); ++i) {
    if (!is_alone(i) || is_empty(i)) continue;
    std::vector<FlatTensors> one = {copied.is_copied[i] ? copied.flat(tensors, i) : FlatTensors(tensors, i, nullptr)};
    share_out(one, make);
    one.front().write_back();
  }
}

/// Returns what is kept for a parameter from step to step.
std::vector<at::Tensor> kept_of(const StepTensors& tensors, std::size_t i) {
  std::vector<at::Tensor> kept;
  const at::TensorList lists[] = {tensors.means, tensors.mean_scales, tensors.squares, tensors.square_scales,
                                  tensors.tails};
  for (const at::TensorList list : lists) {
    if (is_given(list, i)) kept.push_back(list[i]);
  }
  return kept;
}

/// Makes one launch for each parameter, on the streams of their devices.
void step_on_devices(const StepTensors& tensors, const MakeStep& make) {
  Copied copied(tensors);
  std::vector<std::vector<at::Tensor>> kept;
  for (std::size_t i = 0; i < tensors.parameters.size(); ++i) kept.push_back(kept_of(tensors, i));
  Pager pager(tensors.parameters.front().device(), std::move(kept));
  for (std::size_t i = 0; i < tensors.parameters.size(); ++i) {
    pager.before(i);
    if (tensors.parameters[i].numel() == 0) continue;
    FlatTensors one = copied.flat(tensors, i);
    make(LaunchScope(one.device()), i, static_cast<std::uint64_t>(one.count()), one.operands());
    one.write_back();
  }
  pager.finish();
}

}  // namespace

void make_step(const StepTensors& tensors, const MakeStep& make) {
  if (tensors.parameters.empty()) return;
  const c10::NoGradGuard not_differentiated;
  if (tensors.parameters.front().is_cpu()) {
    step_on_threads(tensors, make);
  } else {
    step_on_devices(tensors, make);
  }
}

void require_room(const StepTensors& tensors) { const Copied copied(tensors); }

}  // namespace octavo
