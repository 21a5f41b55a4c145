# SPDX-License-Identifier: Apache-2.0
"""The memory of the devices: figures in bytes, and a limit."""

from typing import Any

import torch
from torch import Tensor

from octavo import _C
from octavo.arguments import is_whole_number
from octavo.sycl.devices import Device, index_of, is_available


def memory_allocated(device: Device = None) -> int:
    """Returns the bytes that live tensors have asked for, exactly."""
    return torch.accelerator.memory_allocated(index_of(device))


def max_memory_allocated(device: Device = None) -> int:
    """Returns the greatest ``memory_allocated()`` since the start or ``reset_peak_memory_stats()``."""
    return torch.accelerator.max_memory_allocated(index_of(device))


def memory_reserved(device: Device = None) -> int:
    """Returns the bytes that the driver has given: the tensors' memory, rounded up, and memory that is kept for later
    ones."""
    return torch.accelerator.memory_reserved(index_of(device))


def max_memory_reserved(device: Device = None) -> int:
    return torch.accelerator.max_memory_reserved(index_of(device))


def memory_stats(device: Device = None) -> dict[str, Any]:
    return torch.accelerator.memory_stats(index_of(device))


def reset_peak_memory_stats(device: Device = None) -> None:
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Returns the free and the total bytes: within the limit where there is one, otherwise of the device."""
    index = index_of(device)
    return torch.accelerator.get_memory_info(index) if is_available() else (0, 0)


def available_memory(device: Device = None) -> int:
    """Returns the bytes of the largest tensor that can be made: free and cached memory, less what rounding up takes."""
    index = index_of(device)
    return _C.sycl.available_memory(index) if is_available() else 0


def set_memory_limit(bytes: int | None, device: Device = None) -> None:
    """Sets how many bytes may be reserved on the device, so that a large device can stand for a small one; None: all it
    has.

    Beyond the limit ``torch.OutOfMemoryError`` is raised. ``OCTAVO_SYCL_MEMORY_BYTES`` sets it from outside, for every
    device. Raises ValueError for a negative number.
    """
    if bytes is not None and not is_whole_number(bytes):
        raise TypeError(f"[sycl.set_memory_limit] expected a number of bytes or None, got {bytes!r}")
    if bytes is not None and bytes < 0:
        raise ValueError(f"[sycl.set_memory_limit] expected a number of bytes or None, got {bytes}")
    _C.sycl.set_memory_limit(index_of(device), bytes)


def get_memory_limit(device: Device = None) -> int | None:
    """Returns the limit, or None where there is none."""
    index = index_of(device)
    return _C.sycl.memory_limit(index) if is_available() else None


def empty(*size: int, dtype: torch.dtype | None = None, kind: str = "shared", device: Device = None) -> Tensor:
    """Returns an uninitialized tensor [*size] in memory of this ``kind``, a kind that SYCL knows:

    - ``"shared"``: shared by host and device, as all other tensors are.
    - ``"host"``: page-locked memory of the host.
    - ``"device"``: memory of the device, which on a GPU only kernels and copies can use.

    Raises ValueError for another kind.
    """
    kinds = _C.sycl.MemoryKind.__members__
    if kind not in kinds:
        raise ValueError(f"[sycl.empty] kind must be one of {', '.join(kinds)}, got '{kind}'")
    return _C.sycl.empty(size, dtype or torch.get_default_dtype(), kinds[kind], index_of(device))


def empty_cache() -> None:
    """Returns memory that no tensor holds to the driver. Waits for all work."""
    torch.accelerator.empty_cache()
