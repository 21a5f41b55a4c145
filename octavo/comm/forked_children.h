// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
}  // namespace c10d

namespace octavo {

/// Leaves a back end undestroyed in every process that is forked from this one. A back end has threads, which the child
/// lacks: a destructor there would wait for them without end. torch leaves its process groups to the end of the process
/// for the same reason. Thread-safe.
void keep_in_forked_children(const c10::intrusive_ptr<c10d::Backend>& backend);

}  // namespace octavo
