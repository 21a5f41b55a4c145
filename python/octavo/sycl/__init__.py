# SPDX-License-Identifier: Apache-2.0
"""``torch.sycl``: the device ``sycl``, with the names that users know from ``torch.cuda``.

``import octavo.sycl`` makes the device where Octavo was built with SYCL's headers and its run time is installed:
install the packages ``intel-sycl-rt`` and ``intel-opencl-rt`` first, then build Octavo (docs/devices.md).

``import octavo`` does not make it, because ``torch.accelerator`` serves one device type at a time, and that is ``sycl``
from then on. ``OCTAVO_ACCELERATOR=sycl`` and ``octavo train --device sycl`` import it themselves. torch has one place
for a device of another library: where it is taken, no device is made, and ``why_missing()`` says so. Import it before
the first backward pass of the process, even one on the CPU, in which torch makes the queues of all devices that it
knows.

Ordinary tensors lie in memory that host and device share; an operator without a kernel of its own runs the CPU's kernel
on that memory, without a copy. Devices are numbered from 0. ``device`` arguments take an index, ``"sycl:1"``, a
``torch.device``, or None for the current device. Collectives on its tensors are Gloo's, on the same memory:
``init_process_group(octavo.sycl.COLLECTIVES)``, which is ``"cpu:gloo,sycl:octavo"``. Where SYCL is missing, what needs
a device raises NotImplementedError, or RuntimeError where it is torch's own, with the reason; figures of memory are 0
there, and ``get_memory_limit()`` is None.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from octavo import _C
from octavo.sycl.devices import (
    DeviceFacts,
    current_device,
    device,
    device_count,
    get_amp_supported_dtype,
    get_device_name,
    get_device_properties,
    is_available,
    is_bf16_supported,
    is_initialized,
    set_device,
)
from octavo.sycl.memory import (
    available_memory,
    empty,
    empty_cache,
    get_memory_limit,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    set_memory_limit,
)
from octavo.sycl.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    set_rng_state,
    set_rng_state_all,
)
from octavo.sycl.streams import (
    Event,
    Stream,
    current_stream,
    default_stream,
    set_stream,
    stream,
    synchronize,
)

__all__ = [
    "COLLECTIVES",
    "DeviceFacts",
    "Event",
    "Stream",
    "available_memory",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "empty",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_name",
    "get_device_properties",
    "get_memory_limit",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "is_installed",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "register",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "set_device",
    "set_memory_limit",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
    "why_missing",
    "why_taken",
]

COLLECTIVES = "cpu:gloo,sycl:octavo"
"""The back ends of a process group whose collectives take tensors of the CPU and of ``sycl``."""


def is_installed() -> bool:
    """Whether this installation has the back end. Whether the back end finds a device is ``is_available()``."""
    library = os.environ.get("OCTAVO_SYCL_PLUGIN") or Path(_C.__file__).parent / "lib" / "liboctavo_sycl.so"
    return Path(library).exists()


def why_missing() -> str:
    """Returns why there is no device ``sycl`` here, in a sentence; an empty text where there is one."""
    if taken := why_taken():
        return taken
    found = _C.backend_status("sycl")
    return "" if found["available"] else found["reason"]


def why_taken() -> str:
    """Returns why torch has no room for ``sycl``, in a sentence: another library has its only place for such a device.
    Returns an empty text where there is room."""
    name = torch._C._get_privateuse1_backend_name()
    if name in ("privateuseone", "sycl"):
        return ""
    return (
        f"[sycl.why_taken] the device '{name}' of another library uses torch's PrivateUse1, the only place for a "
        f"device from outside: use only one of the two in a process"
    )


def register() -> None:
    """Makes the device ``sycl``. Later calls change nothing. Raises RuntimeError where another library has made a
    device."""
    if getattr(torch, "sycl", None) is sys.modules[__name__]:
        return
    if taken := why_taken():
        raise RuntimeError(taken)
    torch.utils.rename_privateuse1_backend("sycl")
    _C.sycl.register_device()
    torch._register_device_module("sycl", sys.modules[__name__])
    _C.sycl.seed_all(torch.initial_seed())  # torch.manual_seed() before this call is for all devices
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True, unsupported_dtype=[])
    if dist.is_available():
        dist.Backend.register_backend("octavo", _gloo_on_device, devices=["sycl"])


def _gloo_on_device(store: "dist.Store", rank: int, size: int, timeout: timedelta) -> "dist.Backend":
    return _C.sycl.HostBackend(dist.ProcessGroupGloo(store, rank, size, timeout=timeout))


def _is_in_bad_fork() -> bool:
    return _C.sycl.is_in_bad_fork()


def __getattr__(name: str) -> bool:
    # torch.utils.checkpoint reads this attribute: only where it is true does the second forward pass of a checkpoint
    # draw the random numbers of the first.
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


if is_installed() and not why_taken():
    register()
