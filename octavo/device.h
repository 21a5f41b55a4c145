// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/device/dispatch.h"
#include "octavo/device/host_alias.h"
#include "octavo/device/huge_pages.h"
#include "octavo/device/sycl/device.h"
#include "octavo/device/sycl/figures.h"
