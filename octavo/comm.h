// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/comm/all_reduce.h"
#include "octavo/comm/auto_choice.h"
#include "octavo/comm/auto_plan.h"
#include "octavo/comm/compressor.h"
#include "octavo/comm/ddp_hook.h"
#include "octavo/comm/fsdp_hook.h"
#include "octavo/comm/host_backend.h"
#include "octavo/comm/plan.h"
#include "octavo/comm/schedule/gather_shards.h"
#include "octavo/comm/schedule/hierarchical.h"
#include "octavo/comm/schedule/one_phase.h"
#include "octavo/comm/schedule/two_phase.h"
#include "octavo/kernels/error.h"
