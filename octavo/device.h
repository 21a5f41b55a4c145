// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/device/dispatch.h"
#include "octavo/device/huge_pages.h"
