// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "octavo/deepcompile/executor.h"
#include "octavo/deepcompile/flags.h"
#include "octavo/deepcompile/fresh_gather.h"
#include "octavo/deepcompile/gradient_order.h"
#include "octavo/deepcompile/gradient_sum.h"
#include "octavo/deepcompile/param_gather.h"
#include "octavo/export.h"

namespace octavo::dc {

/// Reduces buckets to the ranks that own their parts, which sends half of what an all-reduce sends. While one bucket is
/// sent the next one fills. The average of a rank's own part goes to the parameter's gradient buffer, or is added to
/// what is there from earlier micro-batches and from other graphs. A rank that owns nothing of a parameter needs no
/// buffer for it.
class OCTAVO_API ReducingExecutor : public CustomOpExecutor {
 public:
  /// Takes what CustomOpExecutor takes. `sum` is that of all graphs of the engine, and has their parameters. `flags`
  /// are the engine's.
  ReducingExecutor(c10::intrusive_ptr<c10d::ProcessGroup> process_group,
                   std::shared_ptr<DSParamRegistry> param_registry,
                   std::shared_ptr<DoubleBufferedReduceBucket> reduce_buckets, std::vector<long> ds_ids,
                   c10::Stream rs_stream, c10::Stream copy_stream, std::shared_ptr<GradientSum> sum,
                   std::shared_ptr<const Flags> flags = std::make_shared<Flags>());

  /// Sends gradients, from the next pass on, in an order on which ranks agree. They must come through takeGrad().
  void useOrder(std::unique_ptr<GradientOrder> order) {
    earlier_order_bytes_ = orderBytes();
    order_ = std::move(order);
  }
  /// The bytes that agreeing on an order has taken.
  std::uint64_t orderBytes() const { return earlier_order_bytes_ + (order_ ? order_->sent_bytes() : 0); }

  void startBackward(bool update) override;
  void endBackward() override;
  void giveUpPass() override;
  void takeGrad(at::Tensor grad_tensor, long ds_id) override;

 protected:
  void flushReduceBucket(at::ScalarType scalar_type) override;
  void skip(const std::vector<long>& ds_ids);

 private:
  void add_to_bucket(at::Tensor gradient, long ds_id);
  void add_to_bucket(GradientOrder::Turns turns);
  void send_rest();
  void receive();
  void deliver(const ReduceTask& task);
  at::Tensor buffer_of(long ds_id, std::int64_t count) const;

  std::shared_ptr<GradientSum> sum_;
  std::shared_ptr<const Flags> flags_;
  std::uint64_t earlier_order_bytes_ = 0;  // of the orders before
  std::unique_ptr<GradientOrder> order_;   // null: gradients are sent in the order in which they come
};

/// ZeRO-1: every rank adds up the whole gradients of micro-batches, and reduces them with those of the last one.
class OCTAVO_API Z1CustomOpExecutor final : public ReducingExecutor {
 public:
  using ReducingExecutor::ReducingExecutor;
  bool sendsIn(bool update) const override { return update; }
  void endBackward() override;
  at::Tensor reduceGrad(at::Tensor grad_tensor, long ds_id) override;
  void takeGrad(at::Tensor grad_tensor, long ds_id) override;

 private:
  at::Tensor with_earlier(at::Tensor gradient, long ds_id);
};

/// ZeRO-2: the gradients of every micro-batch are reduced, and each rank adds up its own part.
class OCTAVO_API Z2CustomOpExecutor final : public ReducingExecutor {
 public:
  using ReducingExecutor::ReducingExecutor;
};

/// ZeRO-3: every rank has a shard of each parameter. The whole values are there from a gather to the last use in a
/// graph. Gradients are reduced as in ZeRO-2. A persistent parameter keeps its whole values, which serve until the end
/// of a backward pass after which parameters change.
class OCTAVO_API Z3CustomOpExecutor final : public ReducingExecutor {
 public:
  /// Takes what ReducingExecutor takes; `gather` and `fresh` are those of all graphs of the engine.
  Z3CustomOpExecutor(c10::intrusive_ptr<c10d::ProcessGroup> process_group,
                     std::shared_ptr<DSParamRegistry> param_registry,
                     std::shared_ptr<DoubleBufferedReduceBucket> reduce_buckets, std::vector<long> ds_ids,
                     c10::Stream rs_stream, c10::Stream copy_stream, std::shared_ptr<GradientSum> sum,
                     std::shared_ptr<ParamGather> gather, std::shared_ptr<FreshGather> fresh,
                     std::shared_ptr<const Flags> flags = std::make_shared<Flags>());

  void endBackward() override;
  void giveUpPass() override;
  /// Expects no more gradients of these parameters in this backward pass. In an order on which ranks agree (useOrder())
  /// zeros are then sent as soon as it is their turn, so that no other rank waits for them; otherwise it does nothing.
  /// One that comes after all is sent beside the expected ones.
  void skipGrads(const std::vector<long>& ds_ids);

  /// Starts to gather a parameter, unless its whole values are valid or on their way. Returns their memory, which must
  /// not be used before waitAllgather(). `dtype` is that of the memory; not given: the parameter's.
  at::Tensor allgatherParam(long ds_id, std::optional<at::ScalarType> dtype = std::nullopt);
  /// Starts to gather several parameters together (ParamGather::start). `dtypes` has one for each, or none.
  void prefetchParamsFused(const std::vector<long>& ds_ids, const std::vector<at::ScalarType>& dtypes = {});
  /// Waits for the parameter's whole values and returns them, in the dtype of `v`, which allgatherParam() has returned.
  /// Throws Error invalid_argument for a `v` that it has not.
  at::Tensor waitAllgather(const at::Tensor& v, long ds_id);
  /// Must be called after each of the parameter's `n_users` uses in the graph. After the last one the memory is given
  /// up (DSParamRegistry::releaseGatheredParam), unless the parameter is persistent. Throws Error invalid_argument
  /// where the parameter was not waited for, where one that is not persistent is used more often, and for less than one
  /// user.
  void releaseParam(long ds_id, long n_users);

  /// Does the same, and returns memory for the whole values that only the caller has (FreshGather).
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
