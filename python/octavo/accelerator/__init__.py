# SPDX-License-Identifier: Apache-2.0
"""What a training loop asks of a device type: devices, random numbers, streams, memory, precisions, pinned memory.

>>> accelerator = octavo.get_accelerator()             # OCTAVO_ACCELERATOR=cpu|cuda|xpu|sycl overrides
>>> accelerator.device_name(), accelerator.memory_allocated(), accelerator.communication_backend_name()

The names are those of DeepSpeed's accelerator, which ``octavo.integrations.deepspeed`` hands to it.
"""

from octavo.accelerator.base import Accelerator
from octavo.accelerator.choose import accelerator_named, get_accelerator, pinned, set_accelerator
from octavo.accelerator.devices import CPU_Accelerator, CUDA_Accelerator, SYCL_Accelerator, XPU_Accelerator

__all__ = [
    "Accelerator",
    "CPU_Accelerator",
    "CUDA_Accelerator",
    "SYCL_Accelerator",
    "XPU_Accelerator",
    "accelerator_named",
    "get_accelerator",
    "pinned",
    "set_accelerator",
]
