// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace c10d {
class Backend;
}  // namespace c10d

/// What becomes of a back end in a process that is forked from this one. A back end has threads, which the child lacks:
/// a destructor there would wait for them for ever. torch leaves its process groups to the end of the process for
/// the same reason. Thread-safe.
namespace octavo {

/// Children that are forked from now on keep this back end for ever, undestroyed. The caller must own it until it calls
/// release_in_children().
void keep_in_children(c10d::Backend* backend);
/// Ends one call of keep_in_children().
void release_in_children(c10d::Backend* backend);

}  // namespace octavo
