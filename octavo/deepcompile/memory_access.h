// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "octavo/export.h"

namespace octavo::dc {

/// From now on whoever reads or writes the tensor's memory, through any view, gets c10::Error with `message`, and not
/// what memory without bytes has. For parameters that are not whole. Does nothing with a torch that cannot take it back
/// (before 2.13).
OCTAVO_API void forbid_access(const at::Tensor& tensor, std::string message);
/// Whether forbid_access() does something with this torch.
OCTAVO_API bool can_forbid_access();
/// Takes forbid_access() back. The memory must be there again. Does nothing for memory that is not forbidden.
OCTAVO_API void allow_access(const at::Tensor& tensor);

}  // namespace octavo::dc
