// SPDX-License-Identifier: Apache-2.0
// Compressor: what it is made of. Steps, buckets and the rest are in the files compressor_*.cpp.
#include "octavo/comm/compressor.h"

#include <set>
#include <string_view>
#include <utility>

#include "octavo/kernels/error.h"

namespace octavo {

namespace {

/// Returns the parameters. Throws where two have one name, by which states are kept, or where one is no matrix of its
/// rows.
const std::vector<ParameterInfo>& checked(const std::vector<ParameterInfo>& parameters) {
  std::set<std::string_view> names;
  for (const ParameterInfo& info : parameters) {
    if (!info.name.empty() && !names.insert(info.name).second) {
      fail(ErrorCode::invalid_argument, kCompressorWhere, "two parameters have the name ", info.name,
           ": states are kept by name");
    }
    if (info.ownership.unit == 0) {
      fail(ErrorCode::invalid_argument, kCompressorWhere, "expected ranges of ", info.name,
           " in units of at least 1 element, got units of 0");
    }
    if (info.rows > 0 && info.count % info.rows == 0) continue;
    fail(ErrorCode::invalid_argument, kCompressorWhere, "expected ", info.count, " elements of ", info.name,
         " as rows of equal length, got ", info.rows, " rows");
  }
  return parameters;
}

std::vector<Role> all_roles() {
  std::vector<Role> roles = feedback_roles();
  roles.insert(roles.end(), {kResidual, kMapMemory, kOwnMomentum, kOwnUpdate});
  return roles;
}

}  // namespace

Compressor::Compressor(std::unique_ptr<Wire> wire, const Plan& plan, std::vector<ParameterInfo> parameters,
                       CompressorOptions options)
    : wire_(required(std::move(wire), kCompressorWhere, "expected a wire to the other ranks, got none")),
      shards_(std::move(options.shards)),
      host_(std::move(options.host)),
      collective_(options.collective),
      verdict_(unlike_ranks()),
      schedules_(*wire_, host_.get(), scatters()),
      state_(remembered(checked(parameters)), all_roles(), wire_->rank(), wire_->world_size(),
             std::move(options.paging)),
      momenta_(parameters, state_),
      seed_(options.seed),
      steps_per_exchange_(options.steps_per_exchange) {
  const std::vector<ParameterInfo> state_infos = remembered(parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters_.push_back({std::move(parameters[i])});
    parameters_.back().remembered_count = state_infos[i].count;
  }
  require_fits_ranks(plan);
  use(plan);
}

/// Returns the parameters with as many elements as are remembered of them: with hosts, this rank's range on its host.
std::vector<ParameterInfo> Compressor::remembered(std::vector<ParameterInfo> parameters) const {
  for (ParameterInfo& info : parameters) {
    if (host_) info.count = owned_range(info.count, host_->rank(), host_->world_size()).count;
  }
  return parameters;
}

Compressor::~Compressor() = default;

}  // namespace octavo
