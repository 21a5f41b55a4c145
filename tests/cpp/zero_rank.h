// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <utility>
#include <vector>

#include "octavo/deepcompile/engine.h"
#include "tests/cpp/ranks.h"

namespace octavo {

inline c10::intrusive_ptr<c10d::ProcessGroup> process_group_of(const thread_ranks::BackendPtr& backend) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(backend->getRank(), backend->getSize());
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  return group;
}

/// A rank with an engine and one graph of all its parameters; parameters are numbered from 0.
class ZeroRank {
 public:
  using Shapes = std::vector<std::vector<std::int64_t>>;
  static constexpr long kGraph = 0;

  ZeroRank(const thread_ranks::BackendPtr& backend, int stage, Shapes shapes, dc::EngineOptions options = {})
      : engine(process_group_of(backend), backend, /*bucket_size=*/1000, std::move(options)),
        shapes_(std::move(shapes)) {
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      ids.push_back(static_cast<long>(i));
      add(ids.back(), stage);
    }
    if (stage == 1) engine.register_graph_z1(kGraph, ids);
    if (stage == 2) engine.register_graph_z2(kGraph, ids);
    if (stage == 3) engine.register_graph_z3(kGraph, ids);
  }

  /// Returns the whole of a parameter. Its values differ by parameter, step and element.
  at::Tensor whole(long id, int step = 0) const {
    const auto& shape = shapes_[static_cast<std::size_t>(id)];
    const at::Tensor flat = at::arange(at::empty(shape).numel(), at::kDouble) * 31 + 7 * id + step;
    return (at::remainder(flat, 97) / 48.5 - 1).to(at::kFloat).view(shape);
  }
  at::Tensor own(const at::Tensor& of_whole) const {
    const Range range = engine.owned(static_cast<std::uint64_t>(of_whole.numel()));
    return of_whole.reshape({-1}).narrow(0, static_cast<std::int64_t>(range.first),
                                         static_cast<std::int64_t>(range.count));
  }
  at::Tensor gathered(long id, std::optional<at::ScalarType> dtype = std::nullopt) {
    return engine.wait_allgather(engine.allgather_param(kGraph, id, dtype), kGraph, id);
  }
  void reduce(const std::vector<at::Tensor>& gradients) {
    for (std::size_t i = 0; i < gradients.size(); ++i) engine.reduce_grad(gradients[i], kGraph, ids[i]);
  }
  void backward(const std::vector<at::Tensor>& gradients, bool update) {
    engine.start_backward(update);
    reduce(gradients);
    engine.end_backward(kGraph);
  }

  dc::Engine engine;
  std::vector<long> ids;
  std::vector<at::Tensor> values, gradients;  // shards in stage 3, else whole; where sums of own parts go

 private:
  void add(long id, int stage) {
    const at::Tensor all = whole(id), part = own(all);
    gradients.push_back(at::empty_like(part));
    values.push_back(stage == 3 ? part.clone() : all);
    const auto& shape = shapes_[static_cast<std::size_t>(id)];
    if (stage == 3) {
      engine.register_z3_param(id, shape, values.back(), gradients.back(), /*persistent=*/false);
    } else {
      engine.register_param(id, shape, all, gradients.back(), part.storage_offset());
    }
  }

  Shapes shapes_;
};

}  // namespace octavo
