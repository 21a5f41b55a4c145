# SPDX-License-Identifier: Apache-2.0
"""Which devices there are, and which of them is current."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from octavo import _C
from octavo.accelerator.device_index import DeviceIndex, torch_index_of
from octavo.arguments import is_whole_number

Device = DeviceIndex
"""An index, also as text; a ``torch.device`` or its name; or None for the current device."""
DeviceFacts = _C.sycl.DeviceFacts


def is_available() -> bool:
    """Whether there is a device."""
    return device_count() > 0


def device_count() -> int:
    return _C.sycl.device_count()


def is_initialized() -> bool:
    """Whether the device has been used. Counting devices is not a use."""
    return _C.sycl.is_initialized()


def current_device() -> int:
    return torch.accelerator.current_device_index()


def set_device(device: Device) -> None:
    torch.accelerator.set_device_index(index_of(device))


@contextmanager
def device(device: Device) -> Iterator[None]:
    """A context in which ``device`` is the current device."""
    before = current_device()
    set_device(device)
    try:
        yield
    finally:
        set_device(before)


def get_device_properties(device: Device = None) -> "DeviceFacts":
    """Returns name, driver, memory and sizes of a device, as SYCL tells them."""
    return _C.sycl.facts(index_of(device))


def get_device_name(device: Device = None) -> str:
    return get_device_properties(device).name


def is_bf16_supported() -> bool:
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the dtypes that ``torch.autocast("sycl")`` takes."""
    return [torch.bfloat16, torch.float16]


def device_of(device: Device) -> torch.device:
    """Returns the device that a ``device`` argument means, with its index."""
    return torch.device("sycl", index_of(device))


def index_of(device: Device) -> int:
    """Returns the index of the device that a ``device`` argument means; a negative index is the current device, as in
    ``torch.cuda``. Raises ValueError for a device of another type and for an index that no device can have, TypeError
    for anything that is no ``Device``."""
    if is_whole_number(device) and device < 0:
        return current_device()
    index = torch_index_of(device, "sycl", "index_of", module="sycl")
    return current_device() if index is None else index
