// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>  // of the examples of seed 003, which ask it for its rank

#include "octavo/codec/registry.h"  // make_codec, for EngineOptions::gather_codec
#include "octavo/deepcompile/default_engine.h"
#include "octavo/deepcompile/engine.h"
#include "octavo/deepcompile/executor.h"
#include "octavo/deepcompile/flags.h"
#include "octavo/deepcompile/fresh_gather.h"
#include "octavo/deepcompile/gradient_order.h"
#include "octavo/deepcompile/gradient_sum.h"
#include "octavo/deepcompile/graph_ids.h"
#include "octavo/deepcompile/memory_access.h"
#include "octavo/deepcompile/meta.h"
#include "octavo/deepcompile/param_gather.h"
#include "octavo/deepcompile/param_registry.h"
#include "octavo/deepcompile/parameter.h"
#include "octavo/deepcompile/reduce_bucket.h"
#include "octavo/deepcompile/symmetric.h"
#include "octavo/deepcompile/tensor_offload.h"
#include "octavo/deepcompile/text.h"
#include "octavo/deepcompile/zero_executors.h"
#include "octavo/kernels/error.h"

/// Seed 003 names the namespace so. Define the macro in a program that has a `dc` of its own.
#if !defined(OCTAVO_NO_DC)
namespace dc = octavo::dc;
#endif

/// Seed 003 uses this name without a namespace, as NCCL does. Where both meet, include nccl.h before, or define the
/// macro.
#if !defined(NCCL_H_) && !defined(OCTAVO_NO_NCCL_NAMES)
using octavo::dc::ncclDataType_t;
#endif

/// Seed 003 spells the dtype so; torch has the name only in the namespace torch. Define the macro in a program that is
/// `using namespace torch` and says kFloat16, which would have two meanings.
#if !defined(OCTAVO_NO_KFLOAT16)
namespace at {
inline constexpr ScalarType kFloat16 = kHalf;
}  // namespace at
#endif
