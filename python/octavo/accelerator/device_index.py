# SPDX-License-Identifier: Apache-2.0
"""What callers may pass for a device, and the index that it means."""

from __future__ import annotations

import operator

import torch

DeviceIndex = int | str | torch.device | None
"""An index, also as text (LOCAL_RANK); a ``torch.device`` or its name; or None for the current device."""


def index_of(asked: DeviceIndex, device_type: str, function: str) -> int | None:
    """Returns the index that ``asked`` means, or None where it leaves the index open. The device need not be here.

    Raises ValueError `[accelerator.function]` for a device of another type or a negative index, TypeError for anything
    that is no ``DeviceIndex``.
    """
    place = f"[accelerator.{function}]"
    if isinstance(asked, str):
        asked = _parsed(asked, device_type, place)
    if asked is None:
        return None
    if isinstance(asked, torch.device):
        if asked.type != device_type:
            raise ValueError(f"{place} expected a device of type {device_type}, got '{asked}'")
        return asked.index
    try:
        index = operator.index(asked)
    except TypeError:
        name = type(asked).__name__
        raise TypeError(f"{place} expected an int, a str, a torch.device or None, got {name}") from None
    if index < 0:
        raise ValueError(f"{place} expected the index of a device, which is at least 0, got {index}")
    return index


def _parsed(text: str, device_type: str, place: str) -> int | torch.device:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return torch.device(text)
    except RuntimeError:
        raise ValueError(f"{place} expected an index or a device of type {device_type}, got '{text}'") from None
