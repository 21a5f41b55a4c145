// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/export.h"

namespace octavo::dc {

class Engine;

/// Numbers of an engine's graphs that are unique in the process, by which operators find the engine. Any thread.
class OCTAVO_API GraphIds {
 public:
  /// `engine` must live as long as this.
  explicit GraphIds(Engine& engine) : engine_(engine) {}
  /// Operators no longer find the engine.
  ~GraphIds();
  GraphIds(const GraphIds&) = delete;
  GraphIds& operator=(const GraphIds&) = delete;

  /// One that no engine has had, beyond those that users count themselves.
  long next();
  /// Whether it was handed out to another engine.
  bool is_anothers(long graph_id) const;

 private:
  Engine& engine_;
};

/// The engine to which new_graph_id() has handed out the graph's number, or the default engine where that has the
/// graph. The caller sees to it that the engine lives while it is used. Throws Error invalid_argument where it is gone
/// or there was none.
OCTAVO_API Engine& engine_of(long graph_id);

}  // namespace octavo::dc
