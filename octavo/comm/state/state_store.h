// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "octavo/comm/parameter_info.h"
#include "octavo/comm/state/versioned.h"
#include "octavo/export.h"

namespace octavo {

/// Says for which elements of a parameter a rank keeps something, and so how this is redistributed over another number
/// of ranks (redistribute.h).
enum class Extent {
  sent,                // those that it sends to others: what is owed to their sum
  owned,               // those that it owns: what is owed of their average
  own_contribution,    // those that it owns: what is owed to their sum of its own contribution
  whole,               // all elements; each rank has its own values, whose mean is kept
  replicated,          // all elements; the same on all ranks
  shared,              // a size that only the user of the state knows; the same on all ranks
  sent_estimate,       // those that it sends to others: what the owners believe of its values
  received_estimates,  // those that it owns, once for each other rank, in rank order: what it believes of their values
};

/// A kind of tensor that is kept. Its key for a parameter is "name/PARAMETER".
struct Role {
  const char* name;
  Extent extent;
  at::ScalarType dtype;         // kByte: in 8 bits (packed.h)
  bool is_kept_unsent = false;  // it is committed even where the step sent nothing of the parameter
  bool is_owed = false;         // it is what codes have left out, to be sent later
};

/// Roles are told apart by their names.
inline bool is_same(const Role& a, const Role& b) { return std::string_view(a.name) == b.name; }

/// Returns the key of what is kept of a parameter; without a parameter, what all keys of the role begin with.
inline std::string key_of(const Role& role, const std::string& parameter = {}) {
  return std::string(role.name) + "/" + parameter;
}

// For a linear map with error feedback: what its images leave over, for all elements, and what the map itself
// remembers.
inline constexpr Role kResidual = {
    .name = "residual", .extent = Extent::whole, .dtype = at::kBFloat16, .is_owed = true};
inline constexpr Role kMapMemory = {"memory", Extent::shared, at::kFloat};
// The momentum that a rank keeps of its own gradients (Compressor::keep_own_momenta, keep_own_updates).
inline constexpr Role kOwnMomentum = {"momentum", Extent::whole, at::kFloat, /*is_kept_unsent=*/true};
// The updates that a rank has made by itself since the last exchange of updates (Compressor::keep_own_updates).
inline constexpr Role kOwnUpdate = {"update", Extent::whole, at::kFloat, /*is_kept_unsent=*/true};

/// Every tensor of a rank that is kept from step to step, by parameter and role. A tensor is made at its first use. Not
/// thread-safe.
class OCTAVO_API StateStore {
 public:
  /// Throws what StateMemory throws.
  StateStore(std::vector<ParameterInfo> parameters, std::vector<Role> roles, int rank, int world_size,
             StatePaging paging = {});

  Versioned& at(std::size_t parameter, const Role& role);
  /// Returns the values that there are if the step under way is committed; undefined where there are none.
  const at::Tensor& pending(std::size_t parameter, const Role& role);
  const std::vector<Role>& roles() const { return roles_; }
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  /// Sets whether what was written of a parameter belongs to values that were sent. If it does not, it is rolled back
  /// in any case, except for roles with is_kept_unsent.
  void set_sent(std::size_t parameter, bool was_sent) { was_sent_.at(parameter) = was_sent; }
  /// prefetch() moves what is kept of a parameter to its device before it is used, and evict() moves it back to the
  /// host, where it is paged.
  void prefetch(std::size_t parameter) const;
  void evict(std::size_t parameter) const;
  /// Ends a step: commits what was written, or rolls back everything.
  void end_step(bool commit);
  /// Drops what is kept of a parameter in all other roles.
  void clear_except(std::size_t parameter, const std::vector<Role>& kept);

  /// Returns the tensors by key, on the device where they were last used. They are this object's own: copy them before
  /// the next step.
  std::map<std::string, at::Tensor> save() const;
  /// Replaces everything. Throws Error invalid_argument for a key, a dtype or a size that this model does not have; the
  /// state is then unchanged.
  void load(const std::map<std::string, at::Tensor>& tensors);
  /// Does the same from the tensors of all ranks of another world, indexed by old rank, redistributed over this one.
  /// An estimate that lacks a rank's part is left out: both ends of it then begin with zeros.
  void load_world(const std::vector<std::map<std::string, at::Tensor>>& world);

  /// Returns the parameter of that name. Throws Error invalid_argument, in the name of `where`, where there is none.
  std::size_t find(const std::string& name, const char* where) const;

 private:
  void clear();
  struct Place {
    std::size_t parameter, role;
  };

  /// Whether what was written in the step under way is committed where the step is finite.
  bool commits(std::size_t parameter, const Role& role) const { return was_sent_[parameter] || role.is_kept_unsent; }
  Place find_key(const std::string& key) const;
  void require(const at::Tensor& values, const std::string& key, Place place, int rank, int world_size) const;

  std::vector<ParameterInfo> parameters_;
  std::unordered_map<std::string, std::size_t> index_;  // of parameters, by name
  std::vector<Role> roles_;
  int rank_, world_size_;
  std::shared_ptr<StateMemory> memory_;
  std::vector<std::vector<Versioned>> tensors_;  // by parameter, then by role
  std::vector<bool> was_sent_;                   // by parameter, in the step under way
};

}  // namespace octavo
