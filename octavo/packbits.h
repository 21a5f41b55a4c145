// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "octavo/codec/sign_bits.h"  // octavo::packbits, octavo::unpackbits
#include "octavo/kernels/error.h"
