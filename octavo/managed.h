// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/managed_c.h"  // for C, too

#ifdef __cplusplus
#include "octavo/kernels/error.h"
#include "octavo/kernels/managed.h"
#if __has_include(<ATen/core/Tensor.h>)
#include "octavo/device/arena.h"
#endif
#endif
