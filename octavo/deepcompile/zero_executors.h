// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "octavo/deepcompile/executor.h"
#include "octavo/deepcompile/flags.h"
#include "octavo/deepcompile/fresh_gather.h"
#include "octavo/deepcompile/gradient_order.h"
#include "octavo/deepcompile/gradient_sum.h"
#include "octavo/deepcompile/param_gather.h"
#include "octavo/export.h"

namespace octavo::dc {

/// Reduces buckets to the ranks that own their parts: half of what an all-reduce sends. While a bucket travels the next
/// one fills. The average of a rank's own part goes to the parameter's gradient buffer, or is added to what is there of
/// earlier micro-batches and of other graphs; a parameter of which a rank owns nothing needs no buffer there.
class OCTAVO_API ReducingExecutor : public CustomOpExecutor {
 public:
  /// As CustomOpExecutor; `sum` is that of all graphs of the engine, and has their parameters. `flags`: the engine's.
  ReducingExecutor(c10::intrusive_ptr<c10d::ProcessGroup> process_group,
                   std::shared_ptr<DSParamRegistry> param_registry,
                   std::shared_ptr<DoubleBufferedReduceBucket> reduce_buckets, std::vector<long> ds_ids,
                   c10::Stream rs_stream, c10::Stream copy_stream, std::shared_ptr<GradientSum> sum,
                   std::shared_ptr<const Flags> flags = std::make_shared<Flags>());

  /// From the next pass on gradients, which come by takeGrad(), are sent in an order on which ranks agree.
  void useOrder(std::unique_ptr<GradientOrder> order) { order_ = std::move(order); }
  /// Bytes that agreeing has taken.
  std::uint64_t orderBytes() const { return order_ ? order_->sent_bytes() : 0; }

  void startBackward(bool update) override;
  void endBackward() override;
  void takeGrad(at::Tensor grad_tensor, long ds_id) override;

 protected:
  void flushReduceBucket(at::ScalarType scalar_type) override;

 private:
  void add_to_bucket(at::Tensor gradient, long ds_id);
  void add_to_bucket(GradientOrder::Turns turns);
  void send_rest();
  void receive();
  void deliver(const ReduceTask& task);
  at::Tensor buffer_of(long ds_id, std::int64_t count) const;

  std::shared_ptr<GradientSum> sum_;
  std::shared_ptr<const Flags> flags_;
  std::unique_ptr<GradientOrder> order_;    // null: that in which gradients come
  std::unordered_set<long> first_of_step_;  // of what was delivered in this pass
};

/// ZeRO-1: gradients of micro-batches are added up on every rank, whole, and reduced with those of the last one.
class OCTAVO_API Z1CustomOpExecutor final : public ReducingExecutor {
 public:
  using ReducingExecutor::ReducingExecutor;
  void endBackward() override;
  at::Tensor reduceGrad(at::Tensor grad_tensor, long ds_id) override;
  void takeGrad(at::Tensor grad_tensor, long ds_id) override;

 private:
  at::Tensor with_earlier(at::Tensor gradient, long ds_id);
};

/// ZeRO-2: gradients of every micro-batch are reduced, and each rank adds up its own part.
class OCTAVO_API Z2CustomOpExecutor final : public ReducingExecutor {
 public:
  using ReducingExecutor::ReducingExecutor;
};

/// ZeRO-3: every rank has a shard of each parameter, whose whole values are there from a gather to the last use of a
/// graph; gradients as in ZeRO-2. A parameter that is persistent keeps its whole values, which serve until the end of a
/// backward pass after which parameters change.
class OCTAVO_API Z3CustomOpExecutor final : public ReducingExecutor {
 public:
  /// As ReducingExecutor; `gather` and `fresh` are those of all graphs of the engine.
  Z3CustomOpExecutor(c10::intrusive_ptr<c10d::ProcessGroup> process_group,
                     std::shared_ptr<DSParamRegistry> param_registry,
                     std::shared_ptr<DoubleBufferedReduceBucket> reduce_buckets, std::vector<long> ds_ids,
                     c10::Stream rs_stream, c10::Stream copy_stream, std::shared_ptr<GradientSum> sum,
                     std::shared_ptr<ParamGather> gather, std::shared_ptr<FreshGather> fresh,
                     std::shared_ptr<const Flags> flags = std::make_shared<Flags>());

  void endBackward() override;

  /// Starts to gather a parameter, unless its whole values are valid or on their way. Returns their memory, to be used
  /// after waitAllgather() alone; `dtype`: of it, that of the parameter where it is not given.
  at::Tensor allgatherParam(long ds_id, std::optional<at::ScalarType> dtype = std::nullopt);
  /// The same of several at once, in one transfer. `dtypes`: one for each, or none.
  void prefetchParamsFused(const std::vector<long>& ds_ids, const std::vector<at::ScalarType>& dtypes = {});
  /// The parameter's whole values, which are there, in the dtype of `v`, which allgatherParam() has returned.
  at::Tensor waitAllgather(const at::Tensor& v, long ds_id);
  /// After one of its `n_users` uses in the graph; after the last one the memory is given up, unless the parameter is
  /// persistent. Throws Error invalid_argument where it was not waited for, or is used more often.
  void releaseParam(long ds_id, long n_users);

  /// Starts one transfer, and returns memory for the whole values that is the caller's alone, as FreshGather does.
  std::vector<at::Tensor> allgatherParamsFused(const std::vector<long>& ds_ids,
                                               const std::vector<at::ScalarType>& dtypes = {});
  void waitParams(at::TensorList gathered, const std::vector<long>& ds_ids);

 private:
  void requireParams(const std::vector<long>& ds_ids) const;

  std::shared_ptr<ParamGather> gather_;
  std::shared_ptr<FreshGather> fresh_;
  std::unordered_map<long, long> uses_;  // since the last gather
};

}  // namespace octavo::dc
