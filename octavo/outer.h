// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/error.h"
#include "octavo/outer/fragment.h"
#include "octavo/outer/outer.h"
