# SPDX-License-Identifier: Apache-2.0
"""What a training loop asks of a device type: devices, random numbers, streams, memory, precisions, pinned memory.

>>> accelerator = octavo.get_accelerator()             # OCTAVO_ACCELERATOR=cpu|cuda|xpu|sycl overrides
>>> accelerator.device_name(), accelerator.memory_allocated(), accelerator.communication_backend_name()

The names are those of DeepSpeed's accelerator, which ``octavo.integrations.deepspeed`` hands to it.
"""

from octavo.accelerator.abstract import Accelerator
from octavo.accelerator.choose import get_accelerator, set_accelerator
from octavo.accelerator.cpu import CPU_Accelerator
from octavo.accelerator.cuda import CUDA_Accelerator
from octavo.accelerator.pinned import pinned
from octavo.accelerator.sycl import SYCL_Accelerator
from octavo.accelerator.xpu import XPU_Accelerator

__all__ = [
    "Accelerator",
    "CPU_Accelerator",
    "CUDA_Accelerator",
    "SYCL_Accelerator",
    "XPU_Accelerator",
    "get_accelerator",
    "pinned",
    "set_accelerator",
]
