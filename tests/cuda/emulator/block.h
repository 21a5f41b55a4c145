// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tests/cuda/emulator/lanes.h"

namespace octavo::cuda_emulator {

/// What a loaded kernel is called by: it takes the addresses of its parameters.
using KernelCall = void (*)(void** parameters);

struct Launch {
  KernelCall kernel;
  Dimensions grid_size, block_size;
  void** parameters;
};

/// Runs all threads of a launch on the calling thread, warp by warp; each lane is a fiber. Returns what is wrong with
/// the kernel: lanes that meet in different primitives, or not all of them. Empty where nothing is.
std::string run(const Launch& launch);

/// Returns what device code calls.
const Lanes& lanes();

}  // namespace octavo::cuda_emulator
