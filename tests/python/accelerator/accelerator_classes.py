# SPDX-License-Identifier: Apache-2.0
from octavo.accelerator import Accelerator, CPU_Accelerator, CUDA_Accelerator, SYCL_Accelerator, XPU_Accelerator


def _is_here(accelerator: Accelerator) -> bool:
    accelerator.make_present()
    return accelerator.is_available()


ALL = [CPU_Accelerator, CUDA_Accelerator, XPU_Accelerator, SYCL_Accelerator]
HERE = [make for make in ALL if _is_here(make())]
ABSENT = [make for make in ALL if make not in HERE]
