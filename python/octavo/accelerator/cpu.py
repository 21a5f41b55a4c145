# SPDX-License-Identifier: Apache-2.0
"""The host as an accelerator, with streams and events that work: torch has none for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from octavo import _C
from octavo.accelerator.abstract import Accelerator, DeviceIndex
from octavo.accelerator.packages import has_oneccl


class Event(_C.HostEvent):
    """A time of the host's steady clock. Operations on the CPU are finished when they return: nothing ever waits.

    ``elapsed_time(end_event)`` is in milliseconds and raises ValueError unless both were made with
    ``enable_timing=True`` and recorded, as on any device; TypeError for another device's event. ``interprocess=True``
    raises NotImplementedError.
    """

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        device: DeviceIndex = None,
    ) -> None:
        _HOST._require("event", device)
        if interprocess:
            raise NotImplementedError("[accelerator.event] expected interprocess=False on the cpu, got True")
        super().__init__(enable_timing)

    def record(self, stream: torch.Stream | None = None) -> None:
        self._record()

    def elapsed_time(self, end_event: Event) -> float:
        if not isinstance(end_event, Event):
            raise TypeError(f"[accelerator.event] expected end_event as an event of the cpu, got {end_event!r}")
        return super().elapsed_time(end_event)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Operations are finished when they return: there is nothing to wait for."""


class Stream(torch.Stream):
    """A stream of the CPU: always empty. ``accelerator.stream(s)`` makes it current, which changes nothing else."""

    def __new__(cls, device: torch.device | int | None = None, priority: int = 0, *, stream_id: int | None = None):
        if stream_id is None:
            stream_id = _HOST._new_stream().stream_id
        return super().__new__(cls, stream_id=stream_id, device_index=-1, device_type=0)

    def record_event(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def wait_stream(self, stream: torch.Stream) -> None:
        """Operations are finished when they return: there is nothing to wait for."""


_HOST = _C.Accelerator("cpu")


class CPU_Accelerator(Accelerator):
    """One device, ``cpu``, shared by all local ranks: any index is that device, and ``current_device()`` is 0.

    Memory is the process's as Linux accounts for it: ``memory_allocated`` and ``memory_reserved`` are its resident
    bytes (VmRSS), their peaks VmHWM, which the kernel keeps; total and available are the machine's, or the control
    group's where that has a limit.
    """

    def __init__(self) -> None:
        super().__init__("cpu")

    def is_host_processor(self) -> bool:
        return True

    def communication_backend_name(self) -> str:
        return "ccl" if has_oneccl() else super().communication_backend_name()

    @property
    def Stream(self) -> type:
        return Stream

    @property
    def Event(self) -> type:
        return Event

    @contextmanager
    def stream(self, stream: torch.Stream | None) -> Iterator[torch.Stream | None]:
        if stream is None:
            yield None
            return
        previous = self._exchange_stream(stream)
        try:
            yield stream
        finally:
            self._exchange_stream(previous)

    def current_stream(self, device_index: DeviceIndex = None) -> Any:
        return self._stream_object(_C.Accelerator.current_stream(self, device_index))

    def default_stream(self, device_index: DeviceIndex = None) -> Any:
        return self._stream_object(_C.Accelerator.default_stream(self, device_index))

    def _stream_object(self, stream: torch.Stream) -> Stream:
        known = Stream(stream_id=stream.stream_id)
        return self._known_streams.setdefault((-1, stream.stream_id), known)
