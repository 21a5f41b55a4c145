# SPDX-License-Identifier: Apache-2.0
"""``torch.sycl``: the device ``sycl``, with the names that users know from ``torch.cuda``.

``import octavo`` makes the device where its run time is installed (``pip install octavo[sycl]``) and torch has no
other accelerator: torch serves one at a time to ``torch.accelerator``. ``register()`` makes it anyway.

Ordinary tensors lie in memory that host and device share; an operator without a kernel of its own runs the CPU's kernel
on that memory, without a copy. Devices are numbered from 0; ``device`` arguments take an index, ``"sycl:1"``, a
``torch.device`` or None, the current one. Collectives on its tensors are Gloo's, on the same memory:
``init_process_group()`` or ``init_process_group("cpu:gloo,sycl:octavo")``. Where SYCL is missing all of it raises
NotImplementedError with the reason.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Generator, Tensor

from octavo import _C

Device = torch.device | str | int | None
DeviceFacts = _C.sycl.DeviceFacts

COLLECTIVES = "cpu:gloo,sycl:octavo"
"""The back ends of a process group whose collectives take tensors of the CPU and of ``sycl``."""


def is_installed() -> bool:
    """Whether this installation has the back end; whether it finds a device, ``is_available()`` says."""
    return (Path(_C.__file__).parent / "lib" / "liboctavo_sycl.so").exists()


def why_missing() -> str:
    """The reason why there is no device ``sycl`` here, in a sentence; empty where there is one."""
    found = next(backend for backend in _C.backends() if backend["name"] == "sycl")
    return "" if found["available"] else found["reason"]


def register() -> None:
    """Makes the device ``sycl``. Later calls change nothing. RuntimeError where another library has made one."""
    if getattr(torch, "sycl", None) is sys.modules[__name__]:
        return
    torch.utils.rename_privateuse1_backend("sycl")
    _C.sycl.register_device()
    torch._register_device_module("sycl", sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True, unsupported_dtype=[])
    if dist.is_available():
        dist.Backend.register_backend("octavo", _gloo_on_device, devices=["sycl"])


def _gloo_on_device(store: "dist.Store", rank: int, size: int, timeout: timedelta) -> "dist.Backend":
    return _C.sycl.HostBackend(dist.ProcessGroupGloo(store, rank, size, timeout=timeout))


def _is_in_bad_fork() -> bool:
    return _C.sycl.is_in_bad_fork()


# ---- devices


def is_available() -> bool:
    """Whether there is a device."""
    return device_count() > 0


def device_count() -> int:
    return _C.sycl.device_count()


def current_device() -> int:
    return torch.accelerator.current_device_index()


def set_device(device: Device) -> None:
    torch.accelerator.set_device_index(_index(device))


@contextmanager
def device(device: Device) -> Iterator[None]:
    """Makes a device current within a ``with``."""
    before = current_device()
    set_device(device)
    try:
        yield
    finally:
        set_device(before)


def get_device_properties(device: Device = None) -> "DeviceFacts":
    """Name, driver, memory and sizes of a device, as SYCL tells them."""
    return _C.sycl.facts(_index(device))


def get_device_name(device: Device = None) -> str:
    return get_device_properties(device).name


def is_bf16_supported() -> bool:
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What ``torch.autocast("sycl")`` takes."""
    return [torch.bfloat16, torch.float16]


# ---- streams and events


class Stream(torch.Stream):
    """A queue of work, done in order: ``with stream:`` makes it the thread's current one."""

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> "Stream":
        if kwargs:  # a stream that is there already, by its numbers
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, device=_device(device), priority=priority)


class Event(torch.Event):
    """A mark in a stream: makes a ``torch.Event``, since torch times no class derived from it."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False) -> torch.Event:
        return torch.Event(device="sycl", enable_timing=enable_timing, blocking=blocking)


def current_stream(device: Device = None) -> torch.Stream:
    return torch.accelerator.current_stream(_index(device))


def default_stream(device: Device = None) -> torch.Stream:
    """The stream in which work is done that names none."""
    index = _index(device)
    return torch.Stream(stream_id=0, device_index=index, device_type=current_stream(index).device_type)


def set_stream(stream: torch.Stream) -> None:
    torch.accelerator.set_stream(stream)


@contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    """Makes a stream, and its device, current within a ``with``; None changes nothing."""
    if stream is None:
        yield
        return
    with stream:
        yield


def synchronize(device: Device = None) -> None:
    """Waits for all work of the device."""
    torch.accelerator.synchronize(_index(device))


# ---- memory, in bytes


def memory_allocated(device: Device = None) -> int:
    """What tensors asked for and still hold, to the byte."""
    return torch.accelerator.memory_allocated(_index(device))


def max_memory_allocated(device: Device = None) -> int:
    """The most since the start or ``reset_peak_memory_stats()``."""
    return torch.accelerator.max_memory_allocated(_index(device))


def memory_reserved(device: Device = None) -> int:
    """What the driver gave: tensors' memory rounded up, and memory kept for the next ones."""
    return torch.accelerator.memory_reserved(_index(device))


def max_memory_reserved(device: Device = None) -> int:
    return torch.accelerator.max_memory_reserved(_index(device))


def memory_stats(device: Device = None) -> dict[str, Any]:
    return torch.accelerator.memory_stats(_index(device))


def reset_peak_memory_stats(device: Device = None) -> None:
    torch.accelerator.reset_peak_memory_stats(_index(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    torch.accelerator.reset_accumulated_memory_stats(_index(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Free and total bytes: of the limit where there is one, else of the device."""
    return torch.accelerator.get_memory_info(_index(device))


def set_memory_limit(bytes: int | None, device: Device = None) -> None:
    """The most that may be reserved on the device, so that a large one can stand for a small one; None: all it has.

    Beyond it ``torch.OutOfMemoryError`` is raised. ``OCTAVO_SYCL_MEMORY_BYTES`` sets it from outside, for every device.
    """
    if bytes is not None and bytes < 0:
        raise ValueError(f"[sycl.set_memory_limit] expected a number of bytes or None, got {bytes}")
    _C.sycl.set_memory_limit(_index(device), bytes)


def get_memory_limit(device: Device = None) -> int | None:
    return _C.sycl.memory_limit(_index(device))


def empty(*size: int, dtype: torch.dtype | None = None, kind: str = "shared", device: Device = None) -> Tensor:
    """An uninitialized tensor [*size] in memory of a kind that SYCL knows: ``"shared"`` by host and device, as all
    tensors are, ``"host"``, page-locked, or ``"device"``, which on a GPU only kernels and copies can use."""
    kinds = _C.sycl.MemoryKind.__members__
    if kind not in kinds:
        raise ValueError(f"[sycl.empty] expected kind {', '.join(kinds)}, got '{kind}'")
    return _C.sycl.empty(size, dtype or torch.get_default_dtype(), kinds[kind], _index(device))


def empty_cache() -> None:
    """Gives memory that no tensor holds back to the driver; waits for all work."""
    torch.accelerator.empty_cache()


# ---- random numbers: a seed gives the CPU's


def _generator(device: Device = None) -> Generator:
    return _C.sycl.default_generator(_index(device))


def manual_seed(seed: int) -> None:
    """Of the current device."""
    _generator().manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Of all devices. ``torch.manual_seed`` calls it: it looks for no device, so as to cost nothing without one."""
    _C.sycl.seed_all(seed % 2**64)


def seed() -> int:
    return _generator().seed()


def initial_seed() -> int:
    return _generator().initial_seed()


def get_rng_state(device: Device = None) -> Tensor:
    return _generator(device).get_state()


def set_rng_state(new_state: Tensor, device: Device = None) -> None:
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[Tensor]:
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def _device(device: Device) -> torch.device:
    return torch.device("sycl", _index(device))


def _index(device: Device) -> int:
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device if device >= 0 else current_device()
    device = torch.device(device)
    if device.type != "sycl":
        raise ValueError(f"[sycl] expected a device sycl, sycl:N or N, got '{device}'")
    return current_device() if device.index is None else device.index
