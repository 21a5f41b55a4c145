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
#include <set>
#include <span>
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
#include "octavo/deepcompile/param_registry.h"
#include "octavo/deepcompile/reduce_bucket.h"
#include "octavo/deepcompile/tensor_offload.h"
#include "octavo/deepcompile/zero_executors.h"
#include "octavo/export.h"
#include "octavo/kernels/error.h"

namespace octavo::dc {

inline constexpr const char* kEngineWhere = "deepcompile.engine";  // the place in its errors

struct EngineOptions {
  Plan plan = Plan::parse("dense");  // for gradients
  CodecPtr gather_codec = nullptr;   // for parameters that are sent to all ranks; null: they are sent unchanged
  bool double_buffer = true;         // a bucket fills while another one is sent
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // for every wait for other ranks
  /// Whether ranks send one another bytes through memory that they share. Not given, or true: they do where they can,
  /// which they try together. False: they do not. All ranks give the same.
  std::optional<bool> symmetric_memory = std::nullopt;
  /// A connection between the same ranks, only for gradients. Ranks may then send a bucket before a gather or after
  /// it, for example where one rank waits longer for its gradients (Engine::order_gradients). Null: there is one
  /// connection for everything.
  c10::intrusive_ptr<c10d::Backend> gradient_backend = {};
  StatePaging paging = {};  // for what the plan remembers from step to step; ranks may differ
  std::uint64_t seed = 0;   // for what the plan draws (CompressorOptions)
  Flags flags = {};
};

/// What a parameter is registered with beside its tensors.
struct ParamOptions {
  std::string name = {};  // the name in rules of the plan and in saved residuals, of no other; empty: "parameter ID"
  bool exempt = false;    // its gradients are sent in float32 whatever the plan says
  /// For stages 1 and 2 with a codec that leaves something out: what this rank owns, in memory of its own. Only this
  /// memory is changed. Undefined: what it owns is changed in its place in the whole.
  at::Tensor own_part = {};
};

/// ZeRO of one model: its parameters, and an executor for each graph that computes with them. Engines share nothing.
/// Not thread-safe; all ranks make the calls in the same order. After an error of the category communication or timeout
/// the process group and the engine must be rebuilt. An Error of a function that takes a graph names it, the parameters
/// that the function takes, and the rank.
///
/// Parameters are registered first, then graphs. Each rank owns an equal share of each parameter, in flat order
/// (Ownership::equal_ranges).
class OCTAVO_API Engine {
 public:
  /// Makes an engine without a model; init() gives it one.
  Engine();
  /// Makes an engine and calls init().
  Engine(c10::intrusive_ptr<c10d::ProcessGroup> process_group, c10::intrusive_ptr<c10d::Backend> backend,
         std::int64_t bucket_size, EngineOptions options = {});
  /// Whole values that are on their way then never arrive: their memory cannot be read, unless a program has given it.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// `backend` is the process group's for memory that the host reads. `bucket_size` is the number of elements of the
  /// gradients that are reduced together. Throws Error invalid_argument where the engine has a model already, and where
  /// there is no process group or no backend.
  void init(c10::intrusive_ptr<c10d::ProcessGroup> process_group, c10::intrusive_ptr<c10d::Backend> backend,
            std::int64_t bucket_size, EngineOptions options = {});
  /// Forgets all graphs, so that they can be registered anew, for example for other passes over them. Gives up a pass
  /// that is under way, and waits for what graphs gather. Parameters and what plans remember stay. Must be called on
  /// all ranks, between steps.
  void reset();
  /// Forgets the model. The engine may then be given another one.
  void cleanup();

  /// Whether init() was called: only then is there a rank.
  bool has_ranks() const { return backend_ != nullptr; }
  int rank() const;

  // ---- registration, of parameters on one device: where it throws Error invalid_argument nothing has changed

  /// Returns the range that this rank owns of a parameter of `count` elements.
  Range owned(std::uint64_t count) const;
  /// Registers a parameter for stages 1 and 2. `ds_tensor` is the whole parameter. `grad_buffer` is for what this rank
  /// owns, which begins at element `offset` of the parameter.
  void register_param(long ds_id, const std::vector<std::int64_t>& ds_shape, at::Tensor ds_tensor,
                      at::Tensor grad_buffer, std::int64_t offset, ParamOptions options = {});
  /// Registers a parameter for stage 3. `ds_tensor` is what this rank owns, flat: owned(count).count elements, which
  /// may be padded to the count of the first rank. `grad_buffer`, for its gradient, has as many at least.
  void register_z3_param(long ds_id, const std::vector<std::int64_t>& ds_shape, at::Tensor ds_tensor,
                         at::Tensor grad_buffer, bool persistent, ParamOptions options = {});
  /// Returns a number for a graph. The operators `torch.ops.dc` find this engine by it; no other engine of the process
  /// has it.
  long new_graph_id() { return graph_ids_.next(); }
  /// Register a graph of one stage. Its parameters were registered by register_param(), or in stage 3 by
  /// register_z3_param().
  void register_graph_z1(long graph_id, const std::vector<long>& ds_ids);
  void register_graph_z2(long graph_id, const std::vector<long>& ds_ids);
  void register_graph_z3(long graph_id, const std::vector<long>& ds_ids);
  /// Prepares a graph that not all ranks compute alike, for example because a model decides by its data. From the next
  /// pass on each rank may lack gradients, which are then zeros, and may have them in another order. They must come
  /// through take_grad(). `expected` is the order of the gradients that no rank lacks as a rule; others are sent at the
  /// end of a pass. `learns`: from the first pass on ranks find out for themselves, as GradientOrder does. Must be
  /// called on all ranks, between steps.
  void order_gradients(long graph_id, const std::vector<long>& expected, bool learns);
  /// Forgets a graph. Does nothing for one that is not registered. Throws Error invalid_argument for one that has
  /// gradients in a pass that is under way.
  void unregister_graph(long graph_id);
  /// Sets where the reduced gradient of a parameter goes from now on, as in register_param(); undefined: it has no
  /// place.
  void update_param_grad_buffer(long ds_id, at::Tensor grad_buffer);

  // ---- a step

  // A backward pass lasts from start_backward() until end_backward() was called for each graph that took a gradient, or
  // give_up_pass(). Functions without a contract of their own are CustomOpExecutor's of that name, for
  // the graph that they are given; they throw Error invalid_argument, too, for a graph or a parameter that is not
  // registered.

  /// Makes symm_mem (lazy_init_symm_memory()) where the program has set use_symm_mem and there is such memory for the
  /// parameters' device. Throws Error invalid_argument, as end_forward() does, where wait_params() was not called after
  /// each allgather_params_fused() before.
  void start_forward();
  void end_forward();
  /// Must be called before the backward pass of all graphs. `update`: parameters change after the pass. Throws Error
  /// invalid_argument where a graph has gradients of a pass before, which was neither ended nor given up, and where the
  /// last pass of a step in stage 1 has left out end_backward() of a graph with gradients of earlier micro-batches.
  void start_backward(bool update);
  at::Tensor reduce_grad(at::Tensor grad_tensor, long graph_id, long ds_id);
  /// Reduces a gradient as CustomOpExecutor::takeGrad() does; a copy of it where its memory is not its own.
  void take_grad(at::Tensor grad_tensor, long graph_id, long ds_id);
  /// Expects no more gradients of these parameters in this pass, for a graph of stage 3
  /// (Z3CustomOpExecutor::skipGrads): another rank that has one may wait for this rank's part of their sum, and take
  /// part in no gather until then. Does nothing where gradients are ignored.
  void skip_gradients(long graph_id, const std::vector<long>& ds_ids);
  /// Reduces several gradients. What the current stream gets from now on may use their memory for something else.
  void reduce_grads(at::TensorList grads, long graph_id, const std::vector<long>& ds_ids);
  /// Does what end_backward() does. Throws Error invalid_argument where reduce_grads() was not called before with
  /// `n_grads` gradients of the graph: a compiler may drop an operator without a word.
  void finish_backward(long graph_id, std::int64_t n_grads);
  /// Must be called after the backward pass of a graph: what the graph has reduced is then in the gradient buffers. In
  /// stage 1 it must be called in the last pass of a step for every graph with gradients in the step, because sums of
  /// earlier micro-batches are reduced then.
  /// `release_reduce_buckets` is for the last graph of a pass: the buckets' memory is given up until the next pass,
  /// unless another graph's gradients wait there. Throws Error invalid_argument where wait_params() was not called
  /// after each allgather_params_fused() of the graph: gradients may then be wrong.
  void end_backward(long graph_id, bool release_reduce_buckets = false);
  /// Must be called after an error in a forward or backward pass. Forgets what its graphs have gathered and not waited
  /// for, and their gradients, also those that are under way. Waits for no other rank: one that does not give up the
  /// same pass finds out by the deadline. A backward pass that has not ended has perhaps added a part of its gradients
  /// to what earlier passes have added up. Those sums are therefore dropped, too, as by drop_gradients(). If no
  /// backward pass was under way, they stay. A pass of several graphs counts as ended while none of them has gradients
  /// that were not ended: after an error between two graphs call drop_gradients().
  void give_up_pass();
  /// Drops what the backward passes of this step have added up: the next pass begins a step. What is remembered of
  /// gradients is again what it was before; where several passes have sent, it is dropped. A pass that has not ended is
  /// given up. Must be called on all ranks.
  void drop_gradients();
  /// Sets whether reduce_grads() and finish_backward() ignore gradients. Between passes a compiled graph may be
  /// differentiated for something else, and then computes gradients of its parameters, too.
  void ignore_gradients(bool ignores) { pass_.ignores_gradients = ignores; }
  bool ignores_gradients() const { return pass_.ignores_gradients; }

  // ---- whole parameters, of graphs of stage 3

  at::Tensor allgather_param(long graph_id, long ds_id, std::optional<at::ScalarType> dtype = std::nullopt);
  /// `dtypes` has the dtype of the whole values of each parameter; empty: the parameters' own dtypes.
  void prefetch_params_fused(long graph_id, const std::vector<long>& ds_ids,
                             const std::vector<at::ScalarType>& dtypes = {});
  /// Does what prefetch_params_fused() does, to memory of the caller's: `wholes` has that of each parameter, with all
  /// of its elements in its dtype. It must stay until give_back(). Throws Error invalid_argument for another number of
  /// tensors.
  void gather_into(long graph_id, const std::vector<long>& ds_ids, const std::vector<at::Tensor>& wholes);
  /// Whether a parameter's whole values have arrived and are valid.
  bool has_valid_values(long ds_id) const { return param_registry->isValid(ds_id); }
  /// Forgets the memory of a parameter's whole values; does nothing where a graph has released it. Throws Error
  /// invalid_argument where the values are still on their way.
  void give_back(long ds_id);
  /// `v` is what allgather_param() has returned.
  at::Tensor wait_allgather(at::Tensor v, long graph_id, long ds_id);
  void release_param(long graph_id, long ds_id, long n_users);
  /// The two halves of a gather for a compiled graph, which owns the memory that it gets (FreshGather).
  std::vector<at::Tensor> allgather_params_fused(long graph_id, const std::vector<long>& ds_ids,
                                                 const std::vector<at::ScalarType>& dtypes = {});
  void wait_params(at::TensorList gathered, long graph_id, const std::vector<long>& ds_ids);

  /// Brings the whole values of parameters up to date after their owners have changed their parts, in few transfers.
  /// For stages 1 and 2.
  void gather_updated();
  /// Keeps the parameter's whole values from the next gather on, until the end of a backward pass after which
  /// parameters change. The values of the next step are written to the same memory. `is_persistent` false ends this,
  /// and gives the memory up.
  void set_persistent(long ds_id, bool is_persistent = true);
  /// Marks all whole values as stale, because shards were changed outside of a step.
  void invalidate_gathered_params() { param_registry->invalidateAll(); }
  /// Marks the whole values of a parameter as stale, and gives up their memory where the parameter is not persistent.
  /// Waits first where they are on their way.
  void invalidate_gathered_param(long ds_id);
  void clear_all_gathered_params();

  // ---- values of a graph that wait on the host for its backward pass: TensorOffload, where `id` is their number

  at::Tensor offload_tensor(at::Tensor tensor, long graph_id, long id);
  at::Tensor reload_tensor(at::Tensor tensor, long graph_id, long id);
  at::Tensor wait_offload(at::Tensor tensor, long graph_id, long id);
  at::Tensor wait_reload(at::Tensor tensor, long graph_id, long id);
  /// End an offload or a reload for a compiled graph, which may then use memory for something else: that of the value
  /// that was offloaded, or that to which it was reloaded.
  void finish_offload(at::Tensor value, long graph_id, long id);
  void finish_reload(at::Tensor reloaded, long graph_id, long id);
  /// Move a parameter of the graph (DSParam).
  void offload_parameter(long graph_id, long ds_id);
  void reload_parameter(long graph_id, long ds_id);

  /// Move several parameters, which need not be of the graph.
  void offload_params(long graph_id, const std::vector<long>& ds_ids);
  void reload_params(long graph_id, const std::vector<long>& ds_ids);

  // ---- what the optimizer keeps, which waits on the host between its steps: HostedStates

  /// Sets what the optimizer keeps of a parameter. Call it before the first step in which these states may move to the
  /// host, and again after the optimizer has replaced them.
  void set_states(long ds_id, std::vector<at::Tensor> states);
  /// Move states; do nothing for parameters without any. States come back only in the last backward pass of a step.
  void offload_states(long graph_id, const std::vector<long>& ds_ids);
  void reload_states(long graph_id, const std::vector<long>& ds_ids);
  /// Waits, on the calling thread, until parameters and states that were sent are on the host: their memory can be used
  /// again.
  void wait_offloads() const;
  /// Brings all parameters and states back to their device, for what its current stream gets from now on, which may
  /// change them. Must be called before the optimizer's step, and before anyone else looks at them.
  void restore();
  /// The bytes of the device's memory that parameters and states have given up.
  std::int64_t offloaded_bytes() const { return param_registry->offloadedBytes() + states_.away_bytes(); }

  /// Returns why ranks do not send by memory that they share; empty where they do. Known from the first graph on.
  std::string why_no_symmetric_memory() const { return shared_ ? shared_->why_no_symmetric_memory : ""; }
  /// Returns memory of each rank that all others read and write, on the device of the parameters: `size` bytes on each
  /// rank. All ranks must call it together, after the first graph. Throws Error unsupported where ranks share none.
  c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> getSymmMemWorkspace(std::int64_t size);
  /// Makes symm_mem, as large as the largest shard, where use_symm_mem is set and there is none yet. It is for programs
  /// that want such memory; executors have memory of their own. Throws what getSymmMemWorkspace() throws.
  void lazy_init_symm_memory();

  /// Empties the tensors that are larger than Flags::free_activation_threshold; their memory is freed where nobody else
  /// holds it. Throws Error invalid_argument where one is undefined; none is emptied then.
  void free_tensors(const std::vector<at::Tensor>& tensors) const;

  /// Returns the ids of the parameters whose gradient buffers hold a sum of the step that ends with the last
  /// start_backward(true).
  std::vector<long> reduced_params() const;
  /// Bytes that this rank has sent to others.
  std::uint64_t sent_bytes() const;
  /// Returns the compressor that averages gradients, with what its plan remembers from step to step. Throws Error
  /// invalid_argument before the first graph.
  Compressor& compressor() const;

  // What executors work with, by DeepSpeed's names. Buckets are there from the first registered graph on. A program may
  // put executors of its own beside them, with parameters of param_registry and buckets that it has made.
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  std::shared_ptr<DSParamRegistry> param_registry = std::make_shared<DSParamRegistry>();
  std::shared_ptr<DoubleBufferedReduceBucket> reduce_buckets;
  std::unordered_map<long, std::shared_ptr<CustomOpExecutor>> executors;
  c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> symm_mem;
  /// Whether executors send by shared memory, known from the first graph on. Set to true before, it has the meaning of
  /// EngineOptions::symmetric_memory, and start_forward() makes symm_mem.
  bool use_symm_mem = false;
  const std::shared_ptr<Flags> flags = std::make_shared<Flags>();

 private:
  /// What graphs share, made with the first one.
  struct Shared {
    std::string why_no_symmetric_memory;
    c10::Stream rs_stream, copy_stream;
    std::shared_ptr<GradientSum> sum;
    std::shared_ptr<ParamGather> gather;
    std::shared_ptr<FreshGather> fresh;
    bool wants_symm_mem = false;  // use_symm_mem as the program has set it
    bool divides_first = false;   // Flags::pre_div_reduce as all graphs that are registered now were given it
  };

  /// Where the passes of the step under way stand.
  struct Pass {
    std::set<long> open_graphs;                          // have taken gradients, and their backward pass was not ended
    std::unordered_map<long, std::int64_t> handed_over;  // by graph: gradients since its last backward pass
    bool is_under_way = false;
    bool was_started = false;      // start_backward() was called, for this pass or one before
    bool begins_step = true;       // the next pass is the first one of a step
    bool sends = true;             // the pass under way sends gradients, or did so if it was the last one
    bool has_sent_before = false;  // an earlier pass of this step has sent gradients
    bool ignores_gradients = false;
  };

  /// Runs `body`. An Error that it throws also says where: in which graph, with which parameters, on which rank.
  template <class Body>
  auto at(std::optional<long> graph_id, std::span<const long> ds_ids, Body body) const {
    try {
      return body();
    } catch (const Error& error) {
      fail_at(error, graph_id, names_of(ds_ids));
    }
  }
  /// The same for a value of a graph, which has a number there.
  template <class Body>
  auto at_value(long graph_id, long id, Body body) const {
    try {
      return body();
    } catch (const Error& error) {
      fail_at(error, graph_id, "value " + std::to_string(id));
    }
  }
  [[noreturn]] void fail_at(const Error& error, std::optional<long> graph_id, const std::string& what) const;
  std::string names_of(std::span<const long> ds_ids) const;

  const c10d::Backend& backend() const;
  std::uint64_t order_bytes() const;
  void require_registering(long ds_id, c10::Device device, const ParamOptions& options) const;
  void add(long ds_id, const std::vector<std::int64_t>& shape, ParamOptions options);
  void require_params(long graph_id, const std::vector<long>& ds_ids, bool are_whole) const;
  void make_shared_parts();
  template <class Executor, class... Parts>
  void register_graph(long graph_id, const std::vector<long>& ds_ids, Parts Shared::*... parts);
  void end_reductions(long graph_id);
  void require_waited(std::span<const long> ds_ids) const;
  void use_order(long graph_id, const std::vector<long>& expected, bool learns);
  void require_started() const;
  void note_gradient(long graph_id);
  at::Tensor reduce_one(at::Tensor grad_tensor, long graph_id, long ds_id);
  void forget_sums();
  void require_all_reduced() const;
  void forget_gathered(long ds_id);
  CustomOpExecutor& executor(long graph_id) const;
  void require_graph(long graph_id) const { executor(graph_id); }
  Z3CustomOpExecutor& z3_executor(long graph_id) const;
  TensorOffload& offload_of(long graph_id);
  std::uint64_t most_elements() const;
  std::uint64_t longest_message() const;
  std::unique_ptr<Wire> new_wire(const c10::intrusive_ptr<c10d::Backend>& backend) const;

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::int64_t bucket_size_ = 0;
  EngineOptions options_;
  std::vector<SummedParam> params_;
  std::vector<long> whole_;  // the parameters of stages 1 and 2
  std::optional<Shared> shared_;
  std::uint64_t bytes_of_forgotten_orders_ = 0;
  std::unordered_map<long, TensorOffload> offloads_;  // by graph
  HostedStates states_;
  Pass pass_;
  GraphIds graph_ids_{*this};
};

}  // namespace octavo::dc
