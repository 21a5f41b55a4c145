// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "octavo/device/sycl/operators.h"

namespace octavo::sycl_device {

/// Autocast as on torch's own accelerators: which operators run in bf16 or fp16 and which in fp32.
void register_autocast() {
  using namespace at;  // torch's macros name its types without
  static auto* others =
      new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  others->fallback(torch::CppFunction::makeFallthrough());

  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  torch::Library& m = *library;  // as torch's macros name it
#define OCTAVO_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(OCTAVO_LOWER_PRECISION)
#undef OCTAVO_LOWER_PRECISION
#define OCTAVO_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(OCTAVO_FP32)
#undef OCTAVO_FP32
#define OCTAVO_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(OCTAVO_FP32_SET_OPT_DTYPE)
#undef OCTAVO_FP32_SET_OPT_DTYPE
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
#define OCTAVO_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(OCTAVO_PROMOTE)
#undef OCTAVO_PROMOTE
}

}  // namespace octavo::sycl_device
