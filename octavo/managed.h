// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/device/arena.h"
#include "octavo/kernels/managed.h"
#include "octavo/kernels/managed_c.h"
