// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/codec/coding.h"
#include "octavo/codec/format.h"
#include "octavo/codec/sign_bits.h"
