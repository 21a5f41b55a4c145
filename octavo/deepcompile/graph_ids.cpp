// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/graph_ids.h"

#include <mutex>
#include <unordered_map>

#include "octavo/deepcompile/default_engine.h"
#include "octavo/kernels/error.h"

namespace octavo::dc {

namespace {

constexpr long kFirst = 1L << 32;

/// All numbers that were handed out. The entries of an engine that is gone stay, so that messages can say so.
struct GraphTable {
  struct Owner {
    Engine* engine;  // null: it is gone
    int rank;
  };
  std::mutex mutex;
  std::unordered_map<long, Owner> owners;
};

/// The table is never destroyed: engines that Python owns may end later than static objects.
GraphTable& graph_table() {
  static auto* const table = new GraphTable;
  return *table;
}

}  // namespace

GraphIds::~GraphIds() {
  const std::lock_guard lock(graph_table().mutex);
  for (auto& [id, owner] : graph_table().owners) {
    if (owner.engine == &engine_) owner.engine = nullptr;
  }
}

long GraphIds::next() {
  const std::lock_guard lock(graph_table().mutex);
  auto& owners = graph_table().owners;
  const long id = kFirst + static_cast<long>(owners.size());
  owners.emplace(id, GraphTable::Owner{&engine_, engine_.rank()});
  return id;
}

bool GraphIds::is_anothers(long graph_id) const {
  const std::lock_guard lock(graph_table().mutex);
  const auto found = graph_table().owners.find(graph_id);
  return found != graph_table().owners.end() && found->second.engine != &engine_;
}

Engine& engine_of(long graph_id) {
  const std::lock_guard lock(graph_table().mutex);
  const auto found = graph_table().owners.find(graph_id);
  if (found == graph_table().owners.end()) {
    if (default_engine().executors.contains(graph_id)) return default_engine();
    fail(ErrorCode::invalid_argument, "deepcompile.graph_ids", "no engine of this process has graph ", graph_id,
         ": number graphs by new_graph_id() of the engine that registers them");
  }
  if (found->second.engine != nullptr) return *found->second.engine;
  fail(ErrorCode::invalid_argument, "deepcompile.graph_ids", "the engine of graph ", graph_id, ", on rank ",
       found->second.rank, ", was deleted: compile the model again for the present engine");
}

}  // namespace octavo::dc
