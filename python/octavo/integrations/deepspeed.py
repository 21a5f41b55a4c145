# SPDX-License-Identifier: Apache-2.0
"""Octavo's accelerator and packbits, handed to DeepSpeed.

>>> import octavo.integrations.deepspeed
>>> octavo.integrations.deepspeed.install()            # before deepspeed.initialize
>>> import deepspeed.ops.xpu_packbits as xpu_pack

Raises ImportError where DeepSpeed is not installed.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

import octavo
from octavo.accelerator import Accelerator
from octavo.accelerator.abstract import DeviceIndex
from octavo.ops import xpu_packbits

try:
    import deepspeed.accelerator
    import deepspeed.ops
    from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator
except ModuleNotFoundError as missing:
    raise ImportError(
        f"[integrations.deepspeed] expected the package deepspeed (pip install 'octavo[deepspeed]'), got: {missing}"
    ) from missing


def _asked_of_ours(name: str) -> Any:
    """A method or property of DeepSpeed's class that asks Octavo's accelerator, which has it by the same name."""
    if isinstance(getattr(DeepSpeedAccelerator, name), property):
        return property(lambda self: getattr(self.octavo, name))
    return lambda self, *args, **kwargs: getattr(self.octavo, name)(*args, **kwargs)


def _shared_names() -> list[str]:
    """What both classes have and DeepSpeed leaves to its subclasses: all but pinning, which it does through hooks."""
    hooked = {name for name in vars(DeepSpeedAccelerator) if "pin" in name} - DeepSpeedAccelerator.__abstractmethods__
    names = (name for name in vars(DeepSpeedAccelerator) if not name.startswith("_") and name not in hooked)
    return [name for name in names if hasattr(Accelerator, name)]


_Delegating = type(DeepSpeedAccelerator)(
    "_Delegating", (DeepSpeedAccelerator,), {name: _asked_of_ours(name) for name in _shared_names()}
)


class OctavoAccelerator(_Delegating):
    """DeepSpeed's interface over one of ``octavo.accelerator``, which is its attribute ``octavo``.

    DeepSpeed gives every local rank the device of its number. Ranks share a processor: where that is the device,
    ``cpu`` or ``sycl``, ``set_device`` and ``device_name`` take the index modulo the number of devices.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()
        self.octavo = accelerator
        self._name = accelerator.device_name()
        self._communication_backend_name = accelerator.communication_backend_name()
        self._compile_backend = accelerator.get_compile_backend()

    def device_name(self, device_index: DeviceIndex = None) -> str:
        return self.octavo.device_name(self._shared(device_index))

    def set_device(self, device_index: DeviceIndex) -> None:
        self.octavo.set_device(self._shared(device_index))

    def _shared(self, device_index: DeviceIndex) -> DeviceIndex:
        index = self.octavo.device(device_index).index
        if index is None or not self.octavo.is_host_processor():
            return index
        return index % self.octavo.device_count()

    def _torch_pin_memory(self, tensor: Tensor) -> Tensor:
        return self.octavo.pin_memory(tensor)

    def _torch_empty_pinned(self, tensor: Tensor, shape: tuple[int, ...] | torch.Size) -> Tensor:
        return self.octavo.pinned_zeros(shape, tensor.dtype)

    def _torch_is_pinned(self, tensor: Tensor) -> bool:
        return self.octavo.is_pinned(tensor)


def install(accelerator: Accelerator | None = None) -> OctavoAccelerator:
    """Makes ``deepspeed.accelerator.get_accelerator()`` return Octavo's accelerator (by default the chosen one)."""
    handed = OctavoAccelerator(accelerator or octavo.get_accelerator())
    deepspeed.accelerator.set_accelerator(handed)
    return handed


sys.modules["deepspeed.ops.xpu_packbits"] = deepspeed.ops.xpu_packbits = xpu_packbits
