// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/optim/adamw.h"
