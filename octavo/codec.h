// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/codec/block_coding.h"
#include "octavo/codec/codec.h"
#include "octavo/codec/codec_text.h"
#include "octavo/codec/registry.h"
#include "octavo/codec/sign_bits.h"
#include "octavo/kernels/error.h"
