// SPDX-License-Identifier: Apache-2.0
#include "octavo/deepcompile/memory_access.h"

#include <c10/core/StorageImpl.h>

#include <utility>

namespace octavo::dc {

namespace {

template <class Storage>
constexpr bool kTakesBack = requires(Storage& storage) { storage.clear_data_ptr_access_error_msg_(); };

template <class Storage>
void forbid(Storage& storage, std::string message) {
  if constexpr (kTakesBack<Storage>) storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(message));
}

template <class Storage>
void allow(Storage& storage) {
  if constexpr (kTakesBack<Storage>) storage.clear_data_ptr_access_error_msg_();
}

}  // namespace

void forbid_access(const at::Tensor& tensor, std::string message) {
  forbid(*tensor.storage().unsafeGetStorageImpl(), std::move(message));
}

bool can_forbid_access() { return kTakesBack<c10::StorageImpl>; }

void allow_access(const at::Tensor& tensor) { allow(*tensor.storage().unsafeGetStorageImpl()); }

}  // namespace octavo::dc
