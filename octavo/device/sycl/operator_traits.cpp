// SPDX-License-Identifier: Apache-2.0
#include "octavo/device/sycl/operator_traits.h"

#include <algorithm>
#include <array>

namespace octavo::sycl_device {

namespace {

// with indices that may lie on the CPU
constexpr std::array kMixed = {"aten::index",      "aten::_unsafe_index",    "aten::index_put",
                               "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index_put"};

}  // namespace

OperatorTraits::OperatorTraits(const c10::OperatorHandle& op, bool is_sparse)
    : arguments(op.schema().arguments().size()), is_sparse(is_sparse) {
  const c10::FunctionSchema& schema = op.schema();
  is_collective = schema.name().starts_with("c10d::");
  is_mixed = std::find(kMixed.begin(), kMixed.end(), schema.name()) != kMixed.end();
  const bool is_random = op.hasTag(at::Tag::nondeterministic_seeded);
  for (std::size_t i = 0; i < arguments; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) written.push_back(i);
    const auto* optional = argument.type()->castRaw<c10::OptionalType>();
    const bool is_generator = optional != nullptr && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
    if (is_random && is_generator) generator = i;
  }
}

}  // namespace octavo::sycl_device
