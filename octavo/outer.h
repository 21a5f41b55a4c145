// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/outer/fragment.h"
#include "octavo/outer/outer.h"
