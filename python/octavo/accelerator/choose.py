# SPDX-License-Identifier: Apache-2.0
"""Which accelerator this process uses."""

from __future__ import annotations

import os
import threading

from octavo.accelerator.abstract import Accelerator
from octavo.accelerator.cpu import CPU_Accelerator
from octavo.accelerator.cuda import CUDA_Accelerator
from octavo.accelerator.sycl import SYCL_Accelerator
from octavo.accelerator.xpu import XPU_Accelerator

# In the order of detection. CUDA first: on a host with both, an Intel GPU is mostly the one that drives the screen.
# SYCL after XPU, which is the same GPU by torch's own kernels.
_CLASSES: dict[str, type[Accelerator]] = {
    "cuda": CUDA_Accelerator,
    "xpu": XPU_Accelerator,
    "sycl": SYCL_Accelerator,
    "cpu": CPU_Accelerator,
}
_VARIABLES = ("OCTAVO_ACCELERATOR", "DS_ACCELERATOR")

_lock = threading.RLock()
_chosen: Accelerator | None = None


def get_accelerator() -> Accelerator:
    """This process's accelerator, chosen once.

    It is the one that was set; else the one that OCTAVO_ACCELERATOR or DS_ACCELERATOR names; else the first that is
    there of cuda, xpu, sycl and cpu. ``sycl`` over a processor is never chosen by itself: ``cpu`` is the same
    processor, without a detour. Raises ValueError for a name that is none of these, NotImplementedError for a device
    that is absent, with the reason.
    """
    global _chosen
    with _lock:
        if _chosen is None:
            _chosen = _named_by_environment() or _detected()
        return _chosen


def set_accelerator(accelerator: Accelerator | None) -> None:
    """Makes every later ``get_accelerator()`` of this process return it; None detects anew.

    Raises NotImplementedError for one whose device is absent, with the reason.
    """
    global _chosen
    if accelerator is not None and not isinstance(accelerator, Accelerator):
        raise TypeError(
            "[accelerator.set_accelerator] expected an octavo.accelerator.Accelerator or None, "
            f"got {type(accelerator).__name__}"
        )
    if accelerator is not None:
        _require_present(accelerator, "set_accelerator", f"of type {accelerator._name}")
    with _lock:
        _chosen = accelerator


def _named_by_environment() -> Accelerator | None:
    variable = next((name for name in _VARIABLES if os.environ.get(name)), None)
    if variable is None:
        return None
    name = os.environ[variable]
    if name not in _CLASSES:
        raise ValueError(f"[accelerator.get_accelerator] expected {variable} as one of {_names()}, got {name!r}")
    accelerator = _CLASSES[name]()
    _require_present(accelerator, "get_accelerator", f"that {variable}={name} asks for")
    return accelerator


def _require_present(accelerator: Accelerator, function: str, which: str) -> None:
    accelerator.make_present()
    if not accelerator.is_available():
        raise NotImplementedError(
            f"[accelerator.{function}] expected the device {which}, got none: {accelerator.why_absent()}"
        )


def _detected() -> Accelerator:
    return next(accelerator for make in _CLASSES.values() if (accelerator := make()).is_chosen_by_itself())


def _names() -> str:
    return ", ".join(_CLASSES)
