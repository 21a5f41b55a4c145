# SPDX-License-Identifier: Apache-2.0
"""Any SYCL device by Octavo's torch device ``sycl``."""

from __future__ import annotations

from types import ModuleType

from octavo import _C
from octavo.accelerator.abstract import Accelerator


def _sycl() -> ModuleType:
    """Its import makes the device: it waits until somebody asks for that."""
    import octavo.sycl

    return octavo.sycl


class SYCL_Accelerator(Accelerator):
    """A GPU where SYCL's run time has one, else the processor; queues are its streams."""

    def __init__(self) -> None:
        super().__init__("sycl")

    def _torch_module(self) -> ModuleType:
        return _sycl()

    def make_present(self) -> None:
        _sycl()

    def is_host_processor(self) -> bool:
        return self.is_available() and _C.sycl.facts(0).is_cpu

    def is_chosen_by_itself(self) -> bool:
        """Not over a processor: ``cpu`` is the same processor, without a detour."""
        return self.is_available() and not self.is_host_processor()

    def is_fp64_supported(self) -> bool:
        return not self.is_available() or _C.sycl.facts(0).has_fp64

    def set_visible_devices_envs(self, current_env: dict[str, str], local_accelerator_ids: list[int]) -> None:
        """``*:0,1``: these devices, of whichever back end."""
        current_env["ONEAPI_DEVICE_SELECTOR"] = "*:" + ",".join(map(str, local_accelerator_ids))
