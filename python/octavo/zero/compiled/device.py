# SPDX-License-Identifier: Apache-2.0
"""How much memory is in use on the device of a model, and how fast the host's memory is copied to it."""

from __future__ import annotations

import time

import torch

from octavo import _C
from octavo.accelerator import accelerator_named

_PROBE_BYTES = 2**22


class Device:
    def __init__(self, kind: str, engine: _C.Engine):
        """``kind``: torch's name of the device type. ``engine``: knows how much is on the host."""
        self._accelerator, self._engine, self.is_host = accelerator_named(kind), engine, kind == "cpu"

    def peak_bytes(self) -> int:
        return self._accelerator.max_memory_allocated()

    def take_peak(self) -> int:
        """Returns the most bytes that the device would have had allocated since the last call, if nothing were on the
        host."""
        most = self._accelerator.max_memory_allocated() + self._engine.offloaded_bytes()
        self._accelerator.reset_peak_memory_stats()
        return most

    def copy_s_per_byte(self) -> float:
        """Returns the seconds per byte of a copy from page-locked memory of the host. It times the second of two
        copies, because the first one may prepare something."""
        if self.is_host:
            return 0.0
        on_host = self._accelerator.pin_memory(torch.zeros(_PROBE_BYTES, dtype=torch.uint8))
        on_device = torch.empty_like(on_host, device=self._accelerator.current_device_name())
        for _ in range(2):
            self._accelerator.synchronize()
            started = time.perf_counter()
            on_device.copy_(on_host, non_blocking=True)
            self._accelerator.synchronize()
            seconds = time.perf_counter() - started
        return seconds / _PROBE_BYTES
