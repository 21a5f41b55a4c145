// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "octavo/deepcompile/param_registry.h"
#include "octavo/deepcompile/reduce_bucket.h"
#include "octavo/export.h"
#include "octavo/kernels/error.h"

namespace c10d {
class ProcessGroup;
struct ReduceOp;
}  // namespace c10d

namespace octavo::dc {

/// What the operators of one compiled graph do on a rank: it collects the gradients of the graph's parameters in
/// buckets, which a subclass reduces. Not thread-safe; all ranks make the calls in the same order.
///
/// A gradient is copied to its bucket on `copy_stream`, and the bucket is reduced on `rs_stream`, while the current
/// stream of the device computes the next gradients. On the CPU all this happens in the call. A missing gradient is an
/// undefined tensor, and is not put in a bucket.
class OCTAVO_API CustomOpExecutor {
 public:
  /// `ds_ids` are the parameters of the graph, which the registry knows. `pre_div_reduce`: gradients are divided by the
  /// number of ranks before they are added up; otherwise the process group averages them.
  CustomOpExecutor(c10::intrusive_ptr<c10d::ProcessGroup> process_group,
                   std::shared_ptr<DSParamRegistry> param_registry,
                   std::shared_ptr<DoubleBufferedReduceBucket> reduce_buckets, std::vector<long> ds_ids,
                   c10::Stream rs_stream, c10::Stream copy_stream, bool pre_div_reduce);
  virtual ~CustomOpExecutor();
  CustomOpExecutor(const CustomOpExecutor&) = delete;
  CustomOpExecutor& operator=(const CustomOpExecutor&) = delete;

  virtual void startForward() {}
  virtual void endForward() {}
  /// `update`: parameters change after this backward pass; false where gradients are accumulated further.
  virtual void startBackward(bool update) { param_updated_ = update; }
  /// Whether a backward pass with this `update` sends gradients.
  virtual bool sendsIn(bool /*update*/) const { return true; }
  /// Reduces what is in the buckets. What the current streams get from now on waits for it.
  virtual void endBackward();
  /// Forgets what a pass that was broken off has left: the gradients in the buckets are dropped. Sends nothing.
  virtual void giveUpPass();
  /// Takes the gradient of a parameter of this graph. It must have the parameter's shape, or be flat, have any floating
  /// dtype, and be on the parameter's device. Returns an empty tensor. Throws Error invalid_argument for another
  /// gradient, Error unsupported for a sparse one; nothing is in the bucket then.
  virtual at::Tensor reduceGrad(at::Tensor grad_tensor, long ds_id);
  /// Takes a gradient that nobody else uses any more. It may be sent from where it lies, or be added to, and its memory
  /// is then the executor's until the pass that sends it has ended.
  virtual void takeGrad(at::Tensor grad_tensor, long ds_id) { reduceGrad(std::move(grad_tensor), ds_id); }

  /// Makes what the current stream gets from now on wait until gradients are in the buckets: their memory may then be
  /// used for something else.
  void blockOnCopies();

  const std::vector<long>& getParamIds() const { return ds_ids_; }
  bool hasParam(long ds_id) const;
  /// Throws Error invalid_argument for a parameter that is not in the graph.
  void requireParam(long ds_id) const;

 protected:
  /// Reduces the bucket of the dtype: blockCopyEvents(), applyPreDivision(), a collective of process_group_ on
  /// rs_stream_ by getReductionOp(), and performCleanup().
  virtual void flushReduceBucket(at::ScalarType scalar_type) = 0;
  void flushAllReduceBuckets();
  /// Makes what rs_stream_ gets from now on wait for the copies to the bucket.
  void blockCopyEvents(at::ScalarType scalar_type);
  /// Divides the gradients in the bucket by the number of ranks, where that is wanted, on rs_stream_.
  void applyPreDivision(at::ScalarType scalar_type);
  c10d::ReduceOp getReductionOp() const;
  /// Must be called when the bucket has been sent: the other one fills, and gradients that the current stream has made
  /// may be freed.
  void performCleanup(at::ScalarType scalar_type);
  void requireGradient(const at::Tensor& gradient, long ds_id) const;
  /// Returns room for a gradient in its dtype's bucket. Flushes that bucket first where it is full, or has the
  /// parameter already.
  at::Tensor allocate(const at::Tensor& gradient, long ds_id);

  c10::intrusive_ptr<c10d::ProcessGroup> process_group_;
  std::shared_ptr<DSParamRegistry> param_registry_;
  std::shared_ptr<DoubleBufferedReduceBucket> reduce_buckets_;
  std::vector<long> ds_ids_;
  c10::Stream rs_stream_, copy_stream_;
  // The tasks of buckets that are not empty, and so of all graphs that fill them.
  std::unordered_map<at::ScalarType, std::vector<ReduceTask>>& reduce_tasks_;
  std::unordered_map<long, bool>& has_acc_grad_;  // the registry's: a parameter may be one of several graphs
  bool param_updated_ = false;
  bool pre_div_reduce_;

 private:
  bool isInBucket(at::ScalarType dtype, long ds_id) const;

  std::shared_ptr<StreamEvent> computed_, copied_;
};

/// Returns a part that an executor's constructor was given. Throws Error invalid_argument for a null pointer.
template <class Pointer>
Pointer required_part(Pointer given, const char* what) {
  if (given) return given;
  fail(ErrorCode::invalid_argument, "deepcompile.executor", "expected ", what, ", got none: an engine has all that an ",
       "executor needs from its first graph on");
}

/// Returns the executor of a graph as the class that it is. Throws Error invalid_argument for a graph that has none, or
/// one of another class.
template <class T, class U>
std::shared_ptr<T> getExecutor(long graph_id, const std::unordered_map<long, std::shared_ptr<U>>& executors) {
  const auto found = executors.find(graph_id);
  if (found == executors.end()) {
    fail(ErrorCode::invalid_argument, "deepcompile.executor", "graph ", graph_id, " is not registered; ",
         executors.size(), " others are");
  }
  if (auto executor = std::dynamic_pointer_cast<T>(found->second)) return executor;
  fail(ErrorCode::invalid_argument, "deepcompile.executor", "graph ", graph_id,
       " has an executor of another class than this call needs: of another stage of ZeRO, or a program's own");
}

}  // namespace octavo::dc
