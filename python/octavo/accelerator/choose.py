# SPDX-License-Identifier: Apache-2.0
"""Which accelerator this process uses."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.accelerator.base import Accelerator
from octavo.accelerator.devices import CPU_Accelerator, CUDA_Accelerator, SYCL_Accelerator, XPU_Accelerator

_CLASSES: dict[str, type[Accelerator]] = {
    "cuda": CUDA_Accelerator,
    "xpu": XPU_Accelerator,
    "cpu": CPU_Accelerator,
    "sycl": SYCL_Accelerator,
}
# CUDA comes first: on a host with both, the Intel GPU usually drives the screen. sycl is left out: there operators
# without a kernel of their own run on the processor, over memory that migrates.
_DETECTED = ("cuda", "xpu", "cpu")
_VARIABLES = ("OCTAVO_ACCELERATOR", "DS_ACCELERATOR")

_lock = threading.RLock()
_chosen: Accelerator | None = None


def get_accelerator() -> Accelerator:
    """Returns the accelerator of this process, which is chosen once.

    It is the one that ``set_accelerator`` has set; otherwise the one that OCTAVO_ACCELERATOR or DS_ACCELERATOR names;
    otherwise the first of cuda, xpu and cpu that is present. ``sycl`` is never chosen unless it is asked for. Raises
    ValueError for a name that is none of these, NotImplementedError, with the reason, for a device that is absent.
    """
    global _chosen
    with _lock:
        if _chosen is None:
            _chosen = _named_by_environment() or _detected()
        return _chosen


def set_accelerator(accelerator: Accelerator | None) -> None:
    """Makes every later ``get_accelerator()`` of this process return ``accelerator``. With None the next call chooses
    anew.

    Raises NotImplementedError, with the reason, where the accelerator's device is absent; TypeError for anything else
    than an accelerator.
    """
    global _chosen
    if accelerator is not None and not isinstance(accelerator, Accelerator):
        raise TypeError(
            "[accelerator.set_accelerator] expected an octavo.accelerator.Accelerator or None, "
            f"got {type(accelerator).__name__}"
        )
    if accelerator is not None:
        _require_present(accelerator, "set_accelerator")
    with _lock:
        _chosen = accelerator


def accelerator_named(name: str) -> Accelerator:
    """Returns the accelerator of this name, cpu, cuda, xpu or sycl, which need not be the chosen one.

    Raises ValueError for another name, NotImplementedError, with the reason, for a device that is absent.
    """
    return _named(name, "the name", "accelerator_named")


def pinned(shape: int | Sequence[int], dtype: torch.dtype = torch.float32, align_bytes: int = 0) -> Tensor:
    """Returns zeros in page-locked memory, from and to which the chosen accelerator copies asynchronously.

    >>> staging = octavo.pinned((1024, 1024))            # at a page, for direct I/O
    >>> tensor.copy_(staging, non_blocking=True)

    - ``shape``: the sizes, or one size.
    - ``dtype``: the dtype of the tensor.
    - ``align_bytes``: the alignment of the first byte, a power of two; 0: a page, 1: none.

    Raises MemoryError where the system locks no more memory (``ulimit -l``), ValueError for another alignment.
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    return get_accelerator().pinned_zeros(sizes, dtype, align_bytes)


def _named_by_environment() -> Accelerator | None:
    variable = next((name for name in _VARIABLES if os.environ.get(name)), None)
    return None if variable is None else _named(os.environ[variable], variable, "get_accelerator")


def _named(name: str, what: str, function: str) -> Accelerator:
    if name not in _CLASSES:
        raise ValueError(f"[accelerator.{function}] {what} must be one of {', '.join(_CLASSES)}, got '{name}'")
    accelerator = _CLASSES[name]()
    _require_present(accelerator, function)
    return accelerator


def _require_present(accelerator: Accelerator, function: str) -> None:
    accelerator.make_present()
    if not accelerator.is_available():
        name, reason = accelerator.device_name(), accelerator.why_absent()
        raise NotImplementedError(
            f"[accelerator.{function}] {name} was asked for, but there is no such device here: {reason}"
        )


def _detected() -> Accelerator:
    return next(accelerator for name in _DETECTED if (accelerator := _CLASSES[name]()).is_available())
