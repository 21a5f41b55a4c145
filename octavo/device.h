// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/device/arena.h"
#include "octavo/device/dispatch.h"
#include "octavo/device/host_alias.h"
#include "octavo/device/huge_pages.h"
#include "octavo/device/pinned.h"
#include "octavo/device/stream_event.h"
#include "octavo/device/sycl/devices.h"
#include "octavo/device/sycl/memory.h"
#include "octavo/device/sycl/registration.h"
#include "octavo/device/sycl_kernel.h"
#include "octavo/kernels/error.h"
#include "octavo/kernels/host_memory.h"
