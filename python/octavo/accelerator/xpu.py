# SPDX-License-Identifier: Apache-2.0
"""Intel GPUs by torch.xpu."""

from __future__ import annotations

from typing import Any

from octavo.accelerator.abstract import Accelerator, DeviceIndex
from octavo.accelerator.packages import has_oneccl, release


class XPU_Accelerator(Accelerator):
    """Intel GPUs: both half precisions, no Triton, ``ZE_AFFINITY_MASK`` chooses what a process sees."""

    def __init__(self) -> None:
        super().__init__("xpu")

    def communication_backend_name(self) -> str:
        """``ccl`` where oneCCL's bindings import, else torch's own ``xccl``."""
        return "ccl" if has_oneccl() else super().communication_backend_name()

    def use_host_timers(self) -> bool:
        """True with Intel's extension for PyTorch before 2.6, whose events report wrong times."""
        extension = release("intel_extension_for_pytorch")
        return extension < (2, 6) if extension is not None else super().use_host_timers()

    def default_stream(self, device_index: DeviceIndex = None) -> Any:
        """The current stream: XPU has no default stream that the others wait for, as CUDA's do."""
        return self.current_stream(device_index)
