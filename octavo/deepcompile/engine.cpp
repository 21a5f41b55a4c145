// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/engine.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <type_traits>
#include <utility>

#include "octavo/comm/schedule/messages.h"
#include "octavo/comm/shared/shared_backend.h"
#include "octavo/deepcompile/symmetric.h"
#include "octavo/deepcompile/text.h"
#include "octavo/device/stream_event.h"
#include "octavo/kernels/error.h"

namespace octavo::dc {

namespace {

c10::Stream stream_beside(c10::Device device) {
  if (device.is_cpu()) return c10::Stream(c10::Stream::DEFAULT, device);
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/false);
}

std::string name_of(long ds_id, const ParamOptions& options) {
  return options.name.empty() ? "parameter " + std::to_string(ds_id) : options.name;
}

}  // namespace

Engine::Engine() = default;

Engine::Engine(c10::intrusive_ptr<c10d::ProcessGroup> process_group, c10::intrusive_ptr<c10d::Backend> backend,
               std::int64_t bucket_size, EngineOptions options) {
  init(std::move(process_group), std::move(backend), bucket_size, std::move(options));
}

/// The values that lie on the host, or are on their way back, are of tensors that outlive the engine. Whoever destroys
/// it may be at work on another stream than those who use the tensors.
Engine::~Engine() {
  try {
    const bool are_away = offloaded_bytes() > 0;
    restore();
    if (are_away) param_registry->synchronizeDevices();
  } catch (...) {  // the device has no memory left, or is lost: reading the values raises an error that says so
  }
}

void Engine::init(c10::intrusive_ptr<c10d::ProcessGroup> group, c10::intrusive_ptr<c10d::Backend> backend,
                  std::int64_t bucket_size, EngineOptions options) {
  if (backend_) fail(ErrorCode::invalid_argument, kEngineWhere, "the engine has a model already: call cleanup() first");
  if (bucket_size <= 0) {
    fail(ErrorCode::invalid_argument, kEngineWhere, "expected a bucket of at least 1 element, got ", bucket_size);
  }
  if (options.timeout <= std::chrono::milliseconds::zero()) {
    fail(ErrorCode::invalid_argument, kEngineWhere, "expected a timeout above 0 ms, got ", options.timeout.count());
  }
  if (!group || !backend) {
    fail(ErrorCode::invalid_argument, kEngineWhere,
         "expected a process group and its backend for memory of the CPU, got ",
         group ? "no backend" : "no process group");
  }
  process_group = std::move(group);
  backend_ = std::move(backend);
  bucket_size_ = bucket_size;
  options_ = std::move(options);
  *flags = options_.flags;
}

void Engine::reset() {
  give_up_pass();
  if (shared_) shared_->gather->wait_all();
  bytes_of_forgotten_orders_ = order_bytes();
  executors.clear();
  offloads_.clear();
}

void Engine::cleanup() {
  restore();
  states_ = {};
  executors.clear();
  bytes_of_forgotten_orders_ = 0;
  offloads_.clear();
  params_.clear();
  whole_.clear();
  shared_.reset();
  pass_ = {};
  reduce_buckets.reset();
  param_registry = std::make_shared<DSParamRegistry>();
  symm_mem.reset();
  use_symm_mem = false;
  backend_.reset();
  bucket_size_ = 0;
  options_ = {};
  process_group.reset();
  *flags = {};
}

const c10d::Backend& Engine::backend() const {
  if (backend_) return *backend_;
  fail(ErrorCode::invalid_argument, kEngineWhere, "the engine has no model yet: call init() first");
}

int Engine::rank() const { return backend().getRank(); }

// ---- where an error happened

std::string Engine::names_of(std::span<const long> ds_ids) const {
  std::vector<std::string> names;
  for (const long id : ds_ids)
    names.push_back(param_registry->hasParam(id) ? param_registry->nameOf(id) : "parameter " + std::to_string(id));
  return join_as_str(names, ", ", 100);
}

void Engine::fail_at(const Error& error, std::optional<long> graph_id, const std::string& what) const {
  std::vector<std::string> place;
  if (graph_id) place.push_back("graph " + std::to_string(*graph_id));
  if (!what.empty()) place.push_back(what);
  if (has_ranks()) place.push_back("rank " + std::to_string(rank()));
  throw Error(error.code(), std::string(error.what()) + " (" + join_as_str(place, ", ", 200) + ")");
}

// ---- registration

Range Engine::owned(std::uint64_t count) const {
  return owned_range(count, backend().getRank(), backend().getSize(), Ownership::equal_ranges());
}

void Engine::require_registering(long ds_id, c10::Device device, const ParamOptions& options) const {
  if (shared_) {
    fail(ErrorCode::invalid_argument, kEngineWhere, "parameter ", ds_id, " comes after the first graph: register all ",
         "parameters, then graphs");
  }
  const c10::Device first = params_.empty() ? device : param_registry->getParam(params_.front().id).getDevice();
  if (device != first) {
    fail(ErrorCode::invalid_argument, kEngineWhere, "parameter ", ds_id, " is on ", device.str(), ", and parameter ",
         params_.front().id, " on ", first.str(), ": expected all on one device");
  }
  const std::string name = name_of(ds_id, options);
  const auto same = std::ranges::find(params_, name, &SummedParam::name);
  if (same == params_.end() || same->id == ds_id) return;
  fail(ErrorCode::invalid_argument, kEngineWhere, "parameters ", same->id, " and ", ds_id, " have the same name, ",
       name, ", by which their states are saved: give each its own");
}

void Engine::add(long ds_id, const std::vector<std::int64_t>& shape, ParamOptions options) {
  std::string name = name_of(ds_id, options);
  param_registry->setName(ds_id, name);
  params_.push_back({ds_id, std::move(name), shape, options.exempt});
}

void Engine::register_param(long ds_id, const std::vector<std::int64_t>& ds_shape, at::Tensor ds_tensor,
                            at::Tensor grad_buffer, std::int64_t offset, ParamOptions options) {
  require_defined(ds_id, ds_tensor);
  require_registering(ds_id, ds_tensor.device(), options);
  const std::int64_t whole = element_count(ds_id, ds_shape);
  const Range own = owned(static_cast<std::uint64_t>(whole));
  const auto first = static_cast<std::int64_t>(own.first);
  if (own.count > 0 && offset != first) {
    fail(ErrorCode::invalid_argument, kEngineWhere, "expected offset ", first, " of parameter ", ds_id,
         ", from which on rank ", backend_->getRank(), " owns ", own.count, " of its elements, got ", offset);
  }
  if (!ds_tensor.is_contiguous() || ds_tensor.numel() != whole) {
    fail(ErrorCode::invalid_argument, kEngineWhere, "expected parameter ", ds_id, " with ", whole, " elements in ",
         "row-major order, of which ranks own ranges, got ", ds_tensor.numel(), " with strides ", ds_tensor.strides());
  }
  const bool has_own = options.own_part.defined();
  const c10::Device device = has_own ? options.own_part.device() : ds_tensor.device();
  DSParamRegistry::requireWhole(ds_id, whole, device, ds_tensor);  // before anything is registered
  if (has_own && options.own_part.scalar_type() != ds_tensor.scalar_type()) {
    fail(ErrorCode::invalid_argument, kEngineWhere, "expected what this rank owns of parameter ", ds_id, " as ",
         ds_tensor.scalar_type(), ", as the whole, got ", options.own_part.scalar_type());
  }
  if (options_.gather_codec && !has_own) {
    fail(ErrorCode::invalid_argument, kEngineWhere, "parameter ", ds_id, " is sent by ", options_.gather_codec->text(),
         ", which leaves something out: keep what this rank owns in memory of its own, ParamOptions::own_part");
  }
  param_registry->registerParam(ds_id, ds_shape, has_own ? std::move(options.own_part) : ds_tensor,
                                std::move(grad_buffer), has_own, offset, true);
  param_registry->registerGatheredParam(ds_id, std::move(ds_tensor));
  param_registry->setValid(ds_id, true);
  whole_.push_back(ds_id);
  add(ds_id, ds_shape, std::move(options));
}

void Engine::register_z3_param(long ds_id, const std::vector<std::int64_t>& ds_shape, at::Tensor ds_tensor,
                               at::Tensor grad_buffer, bool persistent, ParamOptions options) {
  require_defined(ds_id, ds_tensor);
  require_registering(ds_id, ds_tensor.device(), options);
  const Range own = owned(static_cast<std::uint64_t>(element_count(ds_id, ds_shape)));
  const auto count = static_cast<std::int64_t>(own.count);
  const auto padded = static_cast<std::int64_t>(Ownership::equal_ranges().range_size(
      static_cast<std::uint64_t>(element_count(ds_id, ds_shape)), backend_->getSize()));
  if (ds_tensor.numel() < count || ds_tensor.numel() > padded) {
    fail(ErrorCode::invalid_argument, kEngineWhere, "expected a shard of parameter ", ds_id, " with ", count,
         " elements, which rank ", backend_->getRank(), " of ", backend_->getSize(), " owns of [",
         join_as_str(ds_shape, ", "), "], or padded to ", padded, ", got ", ds_tensor.numel());
  }
  param_registry->registerParam(ds_id, ds_shape, std::move(ds_tensor), std::move(grad_buffer), true, 0, persistent);
  add(ds_id, ds_shape, std::move(options));
}

/// Returns the most elements of the parameters or gradients in a transfer.
std::uint64_t Engine::most_elements() const {
  std::uint64_t largest = 0;
  for (const SummedParam& param : params_) largest = std::max(largest, productDim(param.shape));
  return 2 * static_cast<std::uint64_t>(bucket_size_) + largest;
}

/// Returns the bytes of the longest message in a transfer.
std::uint64_t Engine::longest_message() const {
  constexpr std::uint64_t kRounding = 65;  // a share is rounded up to whole elements, and its codes to whole granules
  std::uint64_t all = 0;
  for (const SummedParam& param : params_) all += productDim(param.shape);
  const std::uint64_t share = std::min(all, most_elements()) / static_cast<unsigned>(backend_->getSize());
  return octavo::longest_message(share + kRounding * params_.size(), params_.size());
}

std::unique_ptr<Wire> Engine::new_wire(const c10::intrusive_ptr<c10d::Backend>& backend) const {
  return std::make_unique<Wire>(backend, options_.timeout, longest_message());
}

void Engine::require_params(long graph_id, const std::vector<long>& ds_ids, bool are_whole) const {
  if (params_.empty()) fail(ErrorCode::invalid_argument, kEngineWhere, "register parameters before the first graph");
  for (const long id : ds_ids) {
    param_registry->getParam(id);  // throws for an unknown one
    if (std::ranges::find(params_, id, &SummedParam::id) == params_.end()) {
      fail(ErrorCode::invalid_argument, kEngineWhere, "graph ", graph_id, " has parameter ", id, ", which is only ",
           "in the registry: register it by the engine's ", are_whole ? "register_param()" : "register_z3_param()");
    }
    if (are_whole != (std::ranges::find(whole_, id) != whole_.end())) {
      fail(ErrorCode::invalid_argument, kEngineWhere, "graph ", graph_id, " has parameter ", id,
           " of another stage of ", "ZeRO: register the graph by ",
           are_whole ? "register_graph_z3()" : "register_graph_z1() or register_graph_z2()");
    }
  }
}

/// Makes what graphs share, on the device of the parameters. Where it throws nothing has changed.
void Engine::make_shared_parts() {
  if (shared_) return;
  const c10::Device device = param_registry->getParam(params_.front().id).getDevice();
  const std::optional<bool> wanted = use_symm_mem ? true : options_.symmetric_memory;
  auto gradient_backend = options_.gradient_backend;
  if (gradient_backend) {
    gradient_backend = reach_by_shared_memory(gradient_backend, wanted, options_.timeout).backend;
  }
  auto reached = reach_by_shared_memory(backend_, wanted, options_.timeout);
  auto sum = std::make_shared<GradientSum>(new_wire(gradient_backend ? gradient_backend : reached.backend),
                                           options_.plan, params_, options_.paging, options_.seed);
  auto gather = std::make_shared<ParamGather>(new_wire(reached.backend), param_registry, most_elements(),
                                              options_.gather_codec, flags);
  auto fresh = std::make_shared<FreshGather>(gather, param_registry);
  auto buckets = std::make_shared<DoubleBufferedReduceBucket>(bucket_size_, options_.double_buffer, device);
  Shared shared = {.why_no_symmetric_memory = reached.why_not,
                   .rs_stream = stream_beside(device),
                   .copy_stream = stream_beside(device),
                   .sum = std::move(sum),
                   .gather = std::move(gather),
                   .fresh = std::move(fresh),
                   .wants_symm_mem = use_symm_mem && has_symmetric_memory(device)};
  options_.gradient_backend = std::move(gradient_backend);
  backend_ = std::move(reached.backend);
  use_symm_mem = reached.why_not.empty();
  reduce_buckets = std::move(buckets);
  shared_ = std::move(shared);
}

/// `parts` are those that this class of executor takes beside what all executors take.
template <class Executor, class... Parts>
void Engine::register_graph(long graph_id, const std::vector<long>& ds_ids, Parts Shared::*... parts) {
  if (executors.contains(graph_id)) {
    fail(ErrorCode::invalid_argument, kEngineWhere, "graph ", graph_id, " is registered already");
  }
  if (graph_ids_.is_anothers(graph_id)) {
    fail(ErrorCode::invalid_argument, kEngineWhere, "graph ", graph_id, " is another engine's: number graphs by ",
         "new_graph_id() of the engine that registers them");
  }
  require_params(graph_id, ds_ids, !std::is_same_v<Executor, Z3CustomOpExecutor>);
  const auto sharing = std::ranges::count_if(executors, [](const auto& each) {  // a program may have its own there
    return std::dynamic_pointer_cast<ReducingExecutor>(each.second) != nullptr;
  });
  if (sharing > 0 && shared_ && shared_->divides_first != flags->pre_div_reduce) {
    fail(ErrorCode::invalid_argument, kEngineWhere, "graph ", graph_id, " comes after pre_div_reduce was changed, and ",
         "shares its buckets with ", sharing, " other graphs: set it before the first one");
  }
  make_shared_parts();
  if (sharing == 0) shared_->divides_first = flags->pre_div_reduce;
  executors.emplace(
      graph_id, std::make_shared<Executor>(process_group, param_registry, reduce_buckets, ds_ids, shared_->rs_stream,
                                           shared_->copy_stream, shared_->sum, (*shared_).*parts..., flags));
}

void Engine::register_graph_z1(long graph_id, const std::vector<long>& ds_ids) {
  at(graph_id, {}, [&] { register_graph<Z1CustomOpExecutor>(graph_id, ds_ids); });
}

void Engine::register_graph_z2(long graph_id, const std::vector<long>& ds_ids) {
  at(graph_id, {}, [&] { register_graph<Z2CustomOpExecutor>(graph_id, ds_ids); });
}

void Engine::register_graph_z3(long graph_id, const std::vector<long>& ds_ids) {
  at(graph_id, {}, [&] { register_graph<Z3CustomOpExecutor>(graph_id, ds_ids, &Shared::gather, &Shared::fresh); });
}

void Engine::order_gradients(long graph_id, const std::vector<long>& expected, bool learns) {
  at(graph_id, {}, [&] { use_order(graph_id, expected, learns); });
}

void Engine::use_order(long graph_id, const std::vector<long>& expected, bool learns) {
  auto& reducing = *getExecutor<ReducingExecutor>(graph_id, executors);
  std::map<long, std::int64_t> counts;
  std::set<at::ScalarType> dtypes;
  for (const long id : reducing.getParamIds()) {
    const DSParam& param = param_registry->getParam(id);
    counts.emplace(id, static_cast<std::int64_t>(productDim(param.getShape())));
    dtypes.insert(param.getDtype());
  }
  // A rank that waits for a bucket with a gradient that another rank lacks has mostly computed those of the next
  // bucket. With one bucket, or with those of several dtypes, it may have computed one gradient more.
  const bool has_next = reduce_buckets->isDouble() && dtypes.size() == 1;
  const std::int64_t most_waiting = has_next ? reduce_buckets->getInitialSize() / 2 : 0;
  // The connection is that of the gathers, whose order is the same on all ranks. If a rank has made an extra gather,
  // this is detected at the end of the pass.
  reducing.useOrder(
      std::make_unique<GradientOrder>(new_wire(backend_), graph_id, counts, expected, learns, most_waiting));
}

void Engine::unregister_graph(long graph_id) {
  if (pass_.open_graphs.contains(graph_id)) {
    at(graph_id, {}, [&] {
      fail(ErrorCode::invalid_argument, kEngineWhere, "graph ", graph_id, " has gradients in a backward pass: call ",
           "end_backward() for it, or give_up_pass(), before it is forgotten");
    });
  }
  const std::uint64_t of_all_orders = order_bytes();
  executors.erase(graph_id);
  bytes_of_forgotten_orders_ += of_all_orders - order_bytes();
  offloads_.erase(graph_id);
}

void Engine::update_param_grad_buffer(long ds_id, at::Tensor grad_buffer) {
  at({}, {&ds_id, 1}, [&] { param_registry->setGradBuffer(ds_id, std::move(grad_buffer)); });
}

SymmetricMemoryPtr Engine::getSymmMemWorkspace(std::int64_t size) {
  if (!shared_)
    fail(ErrorCode::invalid_argument, kEngineWhere, "ranks share memory from the first graph on: register one");
  const c10::Device device = param_registry->getParam(params_.front().id).getDevice();
  const std::string name = device.is_cpu() ? "" : process_group->getGroupName();
  return make_symmetric_memory(backend_, name, device, size, options_.timeout);
}

void Engine::lazy_init_symm_memory() {
  if (symm_mem || !use_symm_mem) return;
  std::uint64_t largest = 1;
  for (const SummedParam& param : params_) {
    const std::uint64_t size = Ownership::equal_ranges().range_size(productDim(param.shape), backend_->getSize());
    largest = std::max(largest, size * c10::elementSize(param_registry->getParam(param.id).getDtype()));
  }
  symm_mem = getSymmMemWorkspace(static_cast<std::int64_t>(largest));
}

}  // namespace octavo::dc
