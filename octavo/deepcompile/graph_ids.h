// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/export.h"

namespace octavo::dc {

class Engine;

/// Numbers of an engine's graphs, unique in the process. Operators find the engine by them. Any thread may call this.
class OCTAVO_API GraphIds {
 public:
  /// `engine` must exist as long as this object.
  explicit GraphIds(Engine& engine) : engine_(engine) {}
  /// Operators no longer find the engine afterwards.
  ~GraphIds();
  GraphIds(const GraphIds&) = delete;
  GraphIds& operator=(const GraphIds&) = delete;

  /// Returns a number that no engine has had, beyond those that users count themselves.
  long next();
  /// Whether the number was handed out to another engine.
  bool is_anothers(long graph_id) const;

 private:
  Engine& engine_;
};

/// Returns the engine to which new_graph_id() has handed out the graph's number, or the default engine where that has
/// the graph. The caller makes sure that the engine exists while it is used. Throws Error invalid_argument where it is
/// gone or there was none.
OCTAVO_API Engine& engine_of(long graph_id);

}  // namespace octavo::dc
