# SPDX-License-Identifier: Apache-2.0
"""Any SYCL device by Octavo's torch device ``sycl``."""

from __future__ import annotations

from octavo.accelerator.abstract import Accelerator


class SYCL_Accelerator(Accelerator):
    """A GPU where SYCL's run time has one, else the processor, with queues as streams and memory figures to the byte."""

    def __init__(self) -> None:
        super().__init__("sycl")

    def set_visible_devices_envs(self, current_env: dict[str, str], local_accelerator_ids: list[int]) -> None:
        """``*:0,1``: these devices, of whichever back end."""
        current_env["ONEAPI_DEVICE_SELECTOR"] = "*:" + ",".join(map(str, local_accelerator_ids))
