// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/kernels/error.h"
#include "octavo/optim/adamw.h"
#include "octavo/optim/lamb.h"
#include "octavo/optim/lion.h"
#include "octavo/optim/pager.h"
#include "octavo/optim/state_coding.h"
#include "octavo/optim/step.h"
#include "octavo/optim/zero_one_adam.h"
