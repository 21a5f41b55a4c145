# SPDX-License-Identifier: Apache-2.0
import octavo.sycl  # noqa: F401  makes the device
from octavo.accelerator import CPU_Accelerator, CUDA_Accelerator, SYCL_Accelerator, XPU_Accelerator

ALL = [CPU_Accelerator, CUDA_Accelerator, XPU_Accelerator, SYCL_Accelerator]
HERE = [make for make in ALL if make().is_available()]
ABSENT = [make for make in ALL if make not in HERE]
