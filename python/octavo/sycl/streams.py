# SPDX-License-Identifier: Apache-2.0
"""Streams and events: torch's own classes, made for ``sycl``."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from octavo.sycl.devices import Device, device_of, index_of


class _OfThisDevice(type):
    """Makes torch's own streams and events of ``sycl`` instances of ``Stream`` and ``Event``: they are what
    ``current_stream()``, ``record_event()`` and ``torch.accelerator`` return."""

    def __instancecheck__(cls, instance: object) -> bool:
        if cls not in (Stream, Event):
            return super().__instancecheck__(instance)
        return isinstance(instance, cls.__base__) and instance.device.type == "sycl"


class Stream(torch.Stream, metaclass=_OfThisDevice):
    """A queue of work that is done in order. ``with stream:`` makes it the thread's current stream."""

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> "Stream":
        if kwargs:  # an existing stream, which is given by its numbers
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, device=device_of(device), priority=priority)


class Event(torch.Event, metaclass=_OfThisDevice):
    """A mark in a stream. Raises NotImplementedError for ``interprocess=True``: SYCL shares no events between
    processes."""

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, device: Device = None
    ) -> torch.Event:
        if interprocess:
            raise NotImplementedError("[sycl.Event] SYCL shares no events between processes: use interprocess=False")
        # torch measures no time between events of a derived class
        return torch.Event(device=device_of(device), enable_timing=enable_timing, blocking=blocking)


def current_stream(device: Device = None) -> torch.Stream:
    return torch.accelerator.current_stream(index_of(device))


def default_stream(device: Device = None) -> torch.Stream:
    """Returns the stream that work uses unless another one is made current."""
    index = index_of(device)
    return torch.Stream(stream_id=0, device_index=index, device_type=current_stream(index).device_type)


def set_stream(stream: torch.Stream) -> None:
    torch.accelerator.set_stream(stream)


@contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    """A context in which a stream, and its device, are current; None changes nothing. Contexts of one stream may be
    nested, and be open in several threads."""
    if stream is None:
        yield
        return
    # not `with stream`, which keeps in the stream itself what was current before
    device, before = torch.accelerator.current_device_index(), torch.accelerator.current_stream(stream.device_index)
    torch.accelerator.set_stream(stream)  # sets the device, too
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)
        torch.accelerator.set_device_index(device)


def synchronize(device: Device = None) -> None:
    """Waits for all work of the device."""
    torch.accelerator.synchronize(index_of(device))
