# SPDX-License-Identifier: Apache-2.0
"""Streams and events of the CPU, which torch does not have. Operations on the CPU are finished when they return."""

from __future__ import annotations

import itertools
import threading

import torch

from octavo import _C
from octavo.accelerator.device_index import DeviceIndex, index_of

DEFAULT_ID = 0
"""The number of the default stream, which all threads have."""

_unused_ids = itertools.count(DEFAULT_ID + 1)


class _Current(threading.local):
    stream_id = DEFAULT_ID


_current = _Current()


class Event(_C.HostEvent):
    """A time of the host's steady clock. Operations on the CPU are finished when they return, so nothing ever waits.

    ``elapsed_time(end_event)`` returns milliseconds. It raises ValueError unless both events were made with
    ``enable_timing=True`` and recorded, as on any device, and TypeError for another device's event.
    ``interprocess=True`` raises NotImplementedError.
    """

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        device: DeviceIndex = None,
    ) -> None:
        index_of(device, "cpu", "event")
        if interprocess:
            raise NotImplementedError(
                "[accelerator.event] events of the cpu are not shared between processes: use interprocess=False"
            )
        super().__init__(enable_timing)

    def record(self, stream: torch.Stream | None = None) -> None:
        self._record()

    def elapsed_time(self, end_event: Event) -> float:
        _require_event(end_event, "end_event")
        return super().elapsed_time(end_event)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Does nothing: operations are finished when they return."""


def _require_event(event: object, parameter: str) -> None:
    if not isinstance(event, Event):
        raise TypeError(f"[accelerator.event] {parameter} must be an event of the cpu, got {event!r}")


class Stream(torch.Stream):
    """A stream of the CPU. It is always empty. ``accelerator.stream(s)`` makes it current, which changes nothing
    else."""

    def __new__(cls, device: torch.device | int | None = None, priority: int = 0, *, stream_id: int | None = None):
        if stream_id is None:
            stream_id = next(_unused_ids)
        return super().__new__(cls, stream_id=stream_id, device_index=-1, device_type=0)

    def record_event(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        _require_event(event, "event")
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        _require_event(event, "event")
        event.wait(self)

    def wait_stream(self, stream: torch.Stream) -> None:
        """Does nothing: operations are finished when they return."""


def current() -> Stream:
    """Returns this thread's current stream."""
    return Stream(stream_id=_current.stream_id)


def exchange(stream: torch.Stream) -> Stream:
    """Makes ``stream`` this thread's current stream, and returns the one before it."""
    previous = current()
    _current.stream_id = stream.stream_id
    return previous
