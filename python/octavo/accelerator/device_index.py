# SPDX-License-Identifier: Apache-2.0
"""What callers may pass for a device, and the index that it means."""

from __future__ import annotations

import operator

import torch

DeviceIndex = int | str | torch.device | None
"""An index, also as text (LOCAL_RANK); a ``torch.device`` or its name; or None for the current device."""

_LARGEST = 127
"""The largest index that a ``torch.device`` can hold. Of a larger one torch keeps the last eight bits, without an
error."""


def torch_index_of(asked: DeviceIndex, device_type: str, function: str, module: str = "accelerator") -> int | None:
    """Returns ``index_of(asked, ...)``. Raises ValueError also for an index that a ``torch.device`` cannot hold."""
    index = index_of(asked, device_type, function, module)
    if index is not None and index > _LARGEST:
        raise ValueError(
            f"[{module}.{function}] expected the index of a device, which is from 0 to {_LARGEST}, got {index}"
        )
    return index


def index_of(asked: DeviceIndex, device_type: str, function: str, module: str = "accelerator") -> int | None:
    """Returns the index that ``asked`` means, or None where it leaves the index open. The device need not be here. The
    index may be larger than any that torch knows, because ranks that share a device pass their numbers.

    Raises ValueError `[module.function]` for a device of another type or a negative index, TypeError for anything that
    is no ``DeviceIndex``.
    """
    place = f"[{module}.{function}]"
    if isinstance(asked, str):
        asked = _parsed(asked, device_type, place)
    if asked is None:
        return None
    if isinstance(asked, torch.device):
        if asked.type != device_type:
            raise ValueError(f"{place} expected a device of type {device_type}, got '{asked}'")
        return asked.index
    index = _whole_number(asked, place)
    if index < 0:
        raise ValueError(f"{place} expected the index of a device, which is at least 0, got {index}")
    return index


def _whole_number(asked: object, place: str) -> int:
    try:
        if not isinstance(asked, bool):
            return operator.index(asked)
    except TypeError:
        pass
    raise TypeError(f"{place} expected an int, a str, a torch.device or None, got {type(asked).__name__}")


def _parsed(text: str, device_type: str, place: str) -> int | torch.device:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        device = torch.device(text)
    except RuntimeError:
        raise ValueError(f"{place} expected an index or a device of type {device_type}, got '{text}'") from None
    number = text.partition(":")[2]
    is_wrapped = device.type == device_type and number and int(number) > _LARGEST
    return int(number) if is_wrapped else device
