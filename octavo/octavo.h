// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/codec.h"
#include "octavo/comm.h"
#include "octavo/deepcompile.h"
#include "octavo/device.h"
#include "octavo/kernels/backend.h"
#include "octavo/kernels/error.h"
#include "octavo/managed.h"
#include "octavo/optim.h"
#include "octavo/outer.h"
#include "octavo/packbits.h"
