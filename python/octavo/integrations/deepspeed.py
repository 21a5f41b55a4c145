# SPDX-License-Identifier: Apache-2.0
"""Hands Octavo's accelerator and packbits to DeepSpeed.

>>> import octavo.integrations.deepspeed
>>> octavo.integrations.deepspeed.install()            # before deepspeed.initialize
>>> import deepspeed.ops.xpu_packbits as xpu_pack

Importing it raises ImportError where DeepSpeed is not installed.
"""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any

import torch
from torch import Tensor

from octavo.accelerator import Accelerator, get_accelerator
from octavo.accelerator.base import NAME_ANOTHER_TO_DEEPSPEED
from octavo.accelerator.device_index import DeviceIndex, index_of
from octavo.ops import xpu_packbits

try:
    import deepspeed.accelerator
    import deepspeed.ops
    from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator
except ModuleNotFoundError as missing:
    raise ImportError(
        f"[integrations.deepspeed] the package deepspeed does not import (pip install deepspeed): {missing}"
    ) from missing
except ValueError as unknown:
    raise ImportError(
        f"[integrations.deepspeed] the package deepspeed does not import: {unknown}. {NAME_ANOTHER_TO_DEEPSPEED}"
    ) from unknown

# Together with what OctavoAccelerator defines, these are all public names of DeepSpeed's class.
# fmt: off
ASKED_OF_OCTAVO = [
    "is_synchronized_device", "use_host_timers", "resolves_data_dependency", "handles_memory_backpressure",
    "device", "current_device", "current_device_name", "device_count", "synchronize", "is_available", "on_accelerator",
    "random", "set_rng_state", "get_rng_state", "manual_seed", "manual_seed_all", "initial_seed", "default_generator",
    "Stream", "Event", "stream", "current_stream", "default_stream",
    "empty_cache", "memory_allocated", "max_memory_allocated", "reset_max_memory_allocated",
    "memory_cached", "max_memory_cached", "reset_max_memory_cached", "memory_stats", "reset_peak_memory_stats",
    "memory_reserved", "max_memory_reserved", "total_memory", "available_memory",
    "register_host_memory", "unregister_host_memory", "pin_memory_alignment",
    "is_bf16_supported", "is_fp16_supported", "is_fp64_supported", "supported_dtypes",
    "is_triton_supported", "prefer_triton_grouped_mm",
    "BFloat16Tensor", "ByteTensor", "DoubleTensor", "FloatTensor", "HalfTensor", "IntTensor", "LongTensor",
    "supports_nvtx_domain", "range_push", "range_pop",
    "is_current_stream_capturing", "create_graph", "capture_to_graph", "replay_graph",
    "get_compile_backend", "set_compile_backend",
    "build_extension", "op_builder_dir", "create_op_builder", "get_op_builder",
    "communication_backend_name", "lazy_call", "export_envs", "visible_devices_envs", "set_visible_devices_envs",
]
# fmt: on
"""The methods and properties that Octavo's accelerator has under the same names, with the same meaning."""

KEPT_FROM_DEEPSPEED = ["pin_empty", "pin_empty_like", "is_pinned", "unpin_memory"]
"""The methods that choose between DeepSpeed's own allocator (DS_PIN_MEMORY_BACKEND=native) and the hooks `_torch_…`."""


def _asked_of_octavo(name: str) -> Any:
    """Returns a method with the signature of Octavo's, or a property. Both ask Octavo's accelerator."""
    ours = getattr(Accelerator, name)
    if not callable(ours):
        return property(lambda self: getattr(self.octavo, name))

    @functools.wraps(ours)
    def ask(self: OctavoAccelerator, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.octavo, name)(*args, **kwargs)

    return ask


_Delegating = type(DeepSpeedAccelerator)(
    "_Delegating", (DeepSpeedAccelerator,), {name: _asked_of_octavo(name) for name in ASKED_OF_OCTAVO}
)


class OctavoAccelerator(_Delegating):
    """DeepSpeed's interface to an accelerator of ``octavo.accelerator``, which is its attribute ``octavo``.

    DeepSpeed gives every local rank the device of the rank's number. The ranks share a processor: where that is the
    device (``cpu`` or ``sycl``), ``set_device`` and ``device_name`` take the index modulo the number of devices.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()
        self.octavo = accelerator
        self._name = accelerator.device_name()
        self._communication_backend_name = accelerator.communication_backend_name()
        self._compile_backend = accelerator.get_compile_backend()

    def device_name(self, device_index: DeviceIndex = None) -> str:
        return self.octavo.device_name(self._shared(device_index, "device_name"))

    def set_device(self, device_index: DeviceIndex) -> None:
        self.octavo.set_device(self._shared(device_index, "set_device"))

    def _shared(self, device_index: DeviceIndex, function: str) -> int | None:
        index = index_of(device_index, self._name, function)
        if index is None or not self.octavo.is_host_processor():
            return index
        return index % self.octavo.device_count()

    def pin_memory(
        self, tensor: Tensor, make_copy: bool = True, match_shape: bool = True, *, align_bytes: int | None = None
    ) -> Tensor:
        """DeepSpeed's method, which chooses the allocator; with ``align_bytes``, which its XPU accelerator also takes,
        the method of Octavo's accelerator."""
        if align_bytes is None:
            return super().pin_memory(tensor, make_copy, match_shape)
        return self.octavo.pin_memory(tensor, align_bytes, make_copy, match_shape)

    # DeepSpeed's hooks for memory that devices copy from and to asynchronously

    def _torch_pin_memory(self, tensor: Tensor) -> Tensor:
        try:
            return self.octavo.pin_memory(tensor)
        except MemoryError as refusal:
            return self._not_locked(refusal, tensor)

    def _torch_empty_pinned(self, tensor: Tensor, shape: tuple[int, ...] | torch.Size) -> Tensor:
        try:
            return self.octavo.pinned_zeros(shape, tensor.dtype)
        except MemoryError as refusal:
            return self._not_locked(refusal, tensor.new_empty(shape))

    def _torch_is_pinned(self, tensor: Tensor) -> bool:
        return self.octavo.is_pinned(tensor)

    def _not_locked(self, refusal: MemoryError, unpinned: Tensor) -> Tensor:
        """Returns ``unpinned`` where the CPU is the device, because no copy needs locked memory there. Otherwise raises
        ``refusal``."""
        if self._name != "cpu":
            raise refusal
        warnings.warn(f"training goes on with memory that is not page-locked: {refusal}", stacklevel=4)
        return unpinned


def install(accelerator: Accelerator | None = None) -> OctavoAccelerator:
    """Makes ``deepspeed.accelerator.get_accelerator()`` return Octavo's accelerator, by default the chosen one. Returns
    what it then returns."""
    handed = OctavoAccelerator(accelerator or get_accelerator())
    deepspeed.accelerator.set_accelerator(handed)
    return handed


sys.modules["deepspeed.ops.xpu_packbits"] = deepspeed.ops.xpu_packbits = xpu_packbits
