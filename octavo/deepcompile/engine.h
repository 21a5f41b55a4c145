// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "octavo/comm/plan.h"
#include "octavo/comm/state/state_memory.h"
#include "octavo/deepcompile/flags.h"
#include "octavo/deepcompile/fresh_gather.h"
#include "octavo/deepcompile/gradient_sum.h"
#include "octavo/deepcompile/graph_ids.h"
#include "octavo/deepcompile/hosted_states.h"
#include "octavo/deepcompile/param_gather.h"
#include "octavo/deepcompile/reduce_bucket.h"
#include "octavo/deepcompile/registry.h"
#include "octavo/deepcompile/tensor_offload.h"
#include "octavo/deepcompile/zero_executors.h"
#include "octavo/export.h"

namespace octavo::dc {

struct EngineOptions {
  Plan plan = Plan::parse("dense");  // of gradients
  CodecPtr gather_codec = nullptr;   // of parameters on their way to all ranks; null: as they are
  bool double_buffer = true;         // a bucket fills while another one is sent
  std::chrono::milliseconds deadline = std::chrono::minutes(30);  // of every wait for other ranks
  /// Ranks send one another bytes through memory that they share. Not given: where they can, which they try together;
  /// true: the same, and false: they do not. All ranks give the same.
  std::optional<bool> symmetric_memory = std::nullopt;
  /// Between the same ranks, for gradients alone: ranks may then send a bucket before a gather or after it, as where
  /// one waits longer for its gradients (Engine::order_gradients). Null: all travels by one.
  c10::intrusive_ptr<c10d::Backend> gradient_backend = {};
  StatePaging paging = {};  // of what the plan remembers from step to step; ranks may differ
  Flags flags = {};
};

/// What a parameter is registered with beside its tensors.
struct ParamOptions {
  std::string name = {};  // by which rules of the plan, and saved residuals, know it; empty: "parameter ID"
  bool exempt = false;    // its gradients are sent in float32 whatever the plan says
  /// For stages 1 and 2 with a codec that leaves something out: what this rank owns, in memory of its own, which alone
  /// is changed. Undefined: it is changed in its place in the whole.
  at::Tensor own_part = {};
};

/// ZeRO of one model: its parameters, and an executor for each graph that computes with them. Engines share nothing.
/// Not thread-safe; all ranks make the calls in the same order. After an error of the category communication or timeout
/// the process group and the engine must be rebuilt.
///
/// Parameters are registered first, then graphs. Of each parameter a rank owns an equal share, in flat order
/// (Ownership::shares).
class OCTAVO_API Engine {
 public:
  /// An engine of no model yet: init() makes it one's.
  Engine();
  /// With init().
  Engine(c10::intrusive_ptr<c10d::ProcessGroup> process_group, c10::intrusive_ptr<c10d::Backend> backend,
         std::int64_t bucket_size, EngineOptions options = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// `backend`: the process group's for memory that the host reads. `bucket_size`: of gradients that are reduced
  /// together, in elements. Throws Error invalid_argument where the engine is a model's already.
  void init(c10::intrusive_ptr<c10d::ProcessGroup> process_group, c10::intrusive_ptr<c10d::Backend> backend,
            std::int64_t bucket_size, EngineOptions options = {});
  /// Graphs are to be registered anew, as for other passes over them: forgets those there are, after what they gather
  /// has come. Parameters and what plans remember stay. On all ranks, between steps.
  void reset();
  /// The engine is of no model any more.
  void cleanup();

  int rank() const;

  // ---- registration: throws Error invalid_argument, and nothing has changed

  /// What this rank owns of a parameter of `count` elements.
  Range owned(std::uint64_t count) const;
  /// For stages 1 and 2: `ds_tensor` is the whole parameter; `grad_buffer` is for what this rank owns, from element
  /// `offset` of the parameter on.
  void register_param(long ds_id, const std::vector<std::int64_t>& ds_shape, at::Tensor ds_tensor,
                      at::Tensor grad_buffer, std::int64_t offset, ParamOptions options = {});
  /// For stage 3: `ds_tensor` is what this rank owns.
  void register_z3_param(long ds_id, const std::vector<std::int64_t>& ds_shape, at::Tensor ds_tensor,
                         at::Tensor grad_buffer, bool persistent, ParamOptions options = {});
  /// A number for a graph by which the operators `torch.ops.dc` find this engine; no other engine of the process has
  /// it.
  long new_graph_id() { return graph_ids_.next(); }
  void register_graph_z1(long graph_id, const std::vector<long>& ds_ids);
  void register_graph_z2(long graph_id, const std::vector<long>& ds_ids);
  void register_graph_z3(long graph_id, const std::vector<long>& ds_ids);
  /// Of a graph that not all ranks compute alike, as where a model decides by its data: from the next pass on each rank
  /// may lack gradients, which are zeros then, and have them in another order. They come by take_grad() alone.
  /// `expected`: in which order, of those that no rank lacks as a rule; others are sent at the end of a pass. `learns`:
  /// from the first pass on ranks see for themselves, as GradientOrder does. On all ranks, between steps.
  void order_gradients(long graph_id, const std::vector<long>& expected, bool learns);
  /// Nothing for one that is not registered.
  void unregister_graph(long graph_id);
  /// Where the reduced gradient of a parameter goes from now on, as of register_param(); undefined: it has no place.
  void update_param_grad_buffer(long ds_id, at::Tensor grad_buffer);

  // ---- a step

  void start_forward();
  void end_forward();
  /// Before the backward pass of all graphs. `update`: parameters change after it.
  void start_backward(bool update);
  at::Tensor reduce_grad(at::Tensor grad_tensor, long graph_id, long ds_id);
  /// As CustomOpExecutor::takeGrad().
  void take_grad(at::Tensor grad_tensor, long graph_id, long ds_id);
  /// Of several, whose memory may be used for something else by what the current stream gets from now on.
  void reduce_grads(at::TensorList grads, long graph_id, const std::vector<long>& ds_ids);
  /// As end_backward(). Throws Error invalid_argument where reduce_grads() was not called with `n_grads` gradients of
  /// the graph before: a compiler may drop an operator without a word.
  void finish_backward(long graph_id, std::int64_t n_grads);
  /// After the backward pass of a graph: what it has reduced is in the gradient buffers. `release_reduce_buckets`: of
  /// the last graph of a pass, to give up the buckets' memory until the next one. Throws Error invalid_argument where
  /// wait_params() was not called after each allgather_params_fused() of the graph: gradients may then be wrong.
  void end_backward(long graph_id, bool release_reduce_buckets = false);
  /// After an error in a pass: what its graphs have not waited for is not held against the next one.
  void give_up_pass();
  /// What the backward passes of this step have added up counts no longer: the next one begins a step. On all ranks,
  /// between passes.
  void drop_gradients();
  /// Whether reduce_grads() and finish_backward() leave out gradients: between passes a compiled graph may be
  /// differentiated for something else, and computes those of its parameters, too.
  void ignore_gradients(bool ignores) { ignores_gradients_ = ignores; }
  bool ignores_gradients() const { return ignores_gradients_; }

  // ---- whole parameters, of graphs of stage 3

  at::Tensor allgather_param(long graph_id, long ds_id, std::optional<at::ScalarType> dtype = std::nullopt);
  /// `dtypes`: of the whole values, one for each; those of the parameters where it is empty.
  void prefetch_params_fused(long graph_id, const std::vector<long>& ds_ids,
                             const std::vector<at::ScalarType>& dtypes = {});
  at::Tensor wait_allgather(at::Tensor v, long graph_id, long ds_id);
  void release_param(long graph_id, long ds_id, long n_users);
  /// The two halves of a gather for a compiled graph, which owns the memory that it gets: FreshGather.
  std::vector<at::Tensor> allgather_params_fused(long graph_id, const std::vector<long>& ds_ids,
                                                 const std::vector<at::ScalarType>& dtypes = {});
  void wait_params(at::TensorList gathered, long graph_id, const std::vector<long>& ds_ids);

  /// Brings the whole of parameters up to date after their owners have changed their parts, in few transfers: stages 1
  /// and 2.
  void gather_updated();
  /// From the next gather on the parameter's whole values stay, until the end of a backward pass after which parameters
  /// change; those of the next step come to the same memory.
  void set_persistent(long ds_id) { param_registry->setPersistent(ds_id, true); }
  /// Shards were changed outside of a step: whole values are stale.
  void invalidate_gathered_params() { param_registry->invalidateAll(); }
  /// The whole values of a parameter are stale, and their memory is given up where the parameter is not persistent.
  /// Waits where they are on their way.
  void invalidate_gathered_param(long ds_id);
  void clear_all_gathered_params();

  // ---- values of a graph that wait on the host for its backward pass: TensorOffload, of which `id` is the number

  at::Tensor offload_tensor(at::Tensor tensor, long graph_id, long id);
  at::Tensor reload_tensor(at::Tensor tensor, long graph_id, long id);
  at::Tensor wait_offload(at::Tensor tensor, long graph_id, long id);
  at::Tensor wait_reload(at::Tensor tensor, long graph_id, long id);
  /// The second halves for a compiled graph, which may use the memory for something else afterwards: that of the value
  /// that was offloaded, and that which was reloaded.
  void finish_offload(at::Tensor value, long graph_id, long id);
  void finish_reload(at::Tensor reloaded, long graph_id, long id);
  /// A parameter of the graph: DSParam.
  void offload_parameter(long graph_id, long ds_id);
  void reload_parameter(long graph_id, long ds_id);

  /// Several, which need not be of the graph.
  void offload_params(long graph_id, const std::vector<long>& ds_ids);
  void reload_params(long graph_id, const std::vector<long>& ds_ids);

  // ---- what the optimizer keeps, which waits on the host between its steps: HostedStates

  /// What it keeps of a parameter, before a step in which it is to wait; other tensors than before where it has others.
  void set_states(long ds_id, std::vector<at::Tensor> states);
  /// Nothing happens to the states of parameters without any. They come back in the last backward pass of a step alone.
  void offload_states(long graph_id, const std::vector<long>& ds_ids);
  void reload_states(long graph_id, const std::vector<long>& ds_ids);
  /// The thread waits until parameters and states that were sent are on the host: their memory can be used again.
  void wait_offloads() const;
  /// All parameters and states are on their device again, for what its current stream gets from now on, which may
  /// change them: before the optimizer's step, and before anyone else looks at them.
  void restore();
  /// Of the device, that parameters and states have given up.
  std::int64_t offloaded_bytes() const { return param_registry->offloadedBytes() + states_.awayBytes(); }

  /// Why ranks do not send by memory that they share; empty where they do. Known from the first graph on.
  const std::string& why_no_symmetric_memory() const { return why_no_symmetric_memory_; }
  /// Memory of each rank that all others read and write, of the device of the parameters: `size` bytes on each, on all
  /// ranks together, after the first graph. Throws Error unsupported where ranks share none.
  c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> getSymmMemWorkspace(std::int64_t size);
  /// Makes symm_mem, as large as the largest shard, where executors send by shared memory and it is not there.
  void lazy_init_symm_memory();

  /// Gives up the memory of tensors that nobody else holds, of those above Flags::free_activation_threshold.
  void free_tensors(const std::vector<at::Tensor>& tensors) const;

  /// Parameters whose gradient buffers hold a sum of the step that ends with the last start_backward(true), by id.
  std::vector<long> reduced_params() const;
  /// Bytes that this rank has sent to others.
  std::uint64_t sent_bytes() const;
  /// What averages gradients, with what its plan remembers from step to step. Throws Error invalid_argument before the
  /// first graph.
  Compressor& compressor() const;

  // What executors work with, by DeepSpeed's names. Buckets are there from the first graph on.
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  std::shared_ptr<DSParamRegistry> param_registry = std::make_shared<DSParamRegistry>();
  std::shared_ptr<DoubleBufferedReduceBucket> reduce_buckets;
  std::unordered_map<long, std::shared_ptr<CustomOpExecutor>> executors;
  c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> symm_mem;
  /// Executors send by shared memory: from the first graph on. Set before, as EngineOptions::symmetric_memory.
  bool use_symm_mem = false;
  const std::shared_ptr<Flags> flags = std::make_shared<Flags>();

 private:
  const c10d::Backend& backend() const;
  void require_registering(long ds_id) const;
  void add(long ds_id, const std::vector<std::int64_t>& shape, ParamOptions options);
  void make_shared_parts();
  template <class Executor, class... More>
  void register_graph(long graph_id, const std::vector<long>& ds_ids, const More&... more);
  void end_reductions(long graph_id);
  CustomOpExecutor& executor(long graph_id) const;
  Z3CustomOpExecutor& z3_executor(long graph_id) const;
  TensorOffload& offload_of(long graph_id);
  std::uint64_t longest_message() const;
  std::unique_ptr<Wire> new_wire(const c10::intrusive_ptr<c10d::Backend>& backend) const;

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::string why_no_symmetric_memory_;
  std::int64_t bucket_size_ = 0;
  EngineOptions options_;
  std::vector<SummedParam> params_;
  std::vector<long> whole_;  // of stages 1 and 2
  std::shared_ptr<GradientSum> sum_;
  std::shared_ptr<ParamGather> gather_;
  std::shared_ptr<FreshGather> fresh_;
  std::unordered_map<long, TensorOffload> offloads_;  // by graph
  HostedStates states_;
  std::unordered_map<long, std::int64_t> handed_over_;  // by graph: gradients since its last backward pass
  std::optional<c10::Stream> rs_stream_, copy_stream_;
  bool begins_step_ = true;
  bool ignores_gradients_ = false;
  bool divides_first_ = false;
  GraphIds graph_ids_{*this};
};

}  // namespace octavo::dc
