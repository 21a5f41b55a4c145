# SPDX-License-Identifier: Apache-2.0
"""The base of all accelerators, and the defaults of every method."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from octavo import _C
from octavo.accelerator import ranges
from octavo.accelerator.op_builders import OpBuilders
from octavo.accelerator.pinned import Pinning
from octavo.accelerator.tensors import TensorTypes

DeviceIndex = int | str | torch.device | None
"""An index, also as text; a ``torch.device`` or its name; or None, the current one."""


class Accelerator(TensorTypes, Pinning, OpBuilders, _C.Accelerator):
    """Every method has a default here or in C++ (``octavo/device/accelerator.h`` documents those, in bytes).

    A subclass for another device type gives its name in torch and overrides what differs; it goes on working when a
    method is added here. An accelerator can be made, and asked for its constants, where its device is absent; what
    needs the device raises NotImplementedError, which says why it is absent. Any thread may call it; the current
    device and stream are the thread's own. A ``device_index`` may be any ``DeviceIndex``; ValueError for an index that
    the device type does not have and for a device of another type.
    """

    supports_nvtx_domain = False  # DeepSpeed asks for it; ranges here have no domains

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._compile_backend = "inductor"
        self._known_streams: weakref.WeakValueDictionary[tuple[int, int], Any] = weakref.WeakValueDictionary()

    # What follows from another method does so here too, where it sees what a subclass in Python overrides.

    def use_host_timers(self) -> bool:
        """Whether to time with the host's clock, because events are missing or unreliable."""
        return self.is_synchronized_device()

    def resolves_data_dependency(self) -> bool:
        return self.is_synchronized_device()

    def handles_memory_backpressure(self) -> bool:
        return self.is_synchronized_device()

    def is_available(self) -> bool:
        return self.device_count() > 0

    def is_host_processor(self) -> bool:
        """Whether the device is the processor that this program runs on, which all local ranks share."""
        return False

    def is_chosen_by_itself(self) -> bool:
        """Whether ``octavo.get_accelerator()`` may take this device type where nobody asks for one by name."""
        return self.is_available()

    def make_present(self) -> None:
        """Does what the device needs to be there, because it was asked for by name; nothing for torch's own."""

    def current_device_name(self) -> str:
        return self.device_name(self.current_device())

    def supported_dtypes(self) -> list[torch.dtype]:
        halves = {torch.float16: self.is_fp16_supported(), torch.bfloat16: self.is_bf16_supported()}
        return [torch.float32, *(dtype for dtype, supported in halves.items() if supported)]

    def prefer_triton_grouped_mm(self) -> bool:
        return False

    def on_accelerator(self, tensor: Tensor) -> bool:
        return tensor.device.type == self._name

    # ---- random numbers

    def random(self) -> ModuleType:
        """torch's module of random-number functions for this device type."""
        return getattr(self._torch_module(), "random", torch.random)

    # ---- streams and events

    @property
    def Stream(self) -> type:
        return self._torch_module().Stream

    @property
    def Event(self) -> type:
        return self._torch_module().Event

    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        """The context in which ``stream`` is current; None changes nothing. ValueError for another device's stream."""
        if stream is None:
            return nullcontext()
        if stream.device.type != self._name:
            raise ValueError(f"[accelerator.stream] expected a stream of {self._name}, got one of {stream.device}")
        return self._torch_module().stream(stream)

    def current_stream(self, device_index: DeviceIndex = None) -> Any:
        """The current stream; asked again while it is the same and somebody has it, the same object."""
        device = self._require("current_stream", device_index)
        stream = self._torch_module().current_stream(device)
        return self._known_streams.setdefault((stream.device_index, stream.stream_id), stream)

    def default_stream(self, device_index: DeviceIndex = None) -> Any:
        device = self._require("default_stream", device_index)
        stream = self._torch_module().default_stream(device)
        return self._known_streams.setdefault((stream.device_index, stream.stream_id), stream)

    # ---- memory; the allocators of torch reserve what they cache, and reset all peaks together

    def memory_cached(self, device_index: DeviceIndex = None) -> int:
        return self.memory_reserved(device_index)

    def max_memory_cached(self, device_index: DeviceIndex = None) -> int:
        return self.max_memory_reserved(device_index)

    def reset_max_memory_allocated(self, device_index: DeviceIndex = None) -> None:
        self.reset_peak_memory_stats(device_index)

    def reset_max_memory_cached(self, device_index: DeviceIndex = None) -> None:
        self.reset_peak_memory_stats(device_index)

    # ---- ranges in a profile

    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> None:
        """Opens a range named ``msg`` in torch's profile of this thread."""
        ranges.push(msg)

    def range_pop(self, domain: str | None = None) -> None:
        ranges.pop()

    # ---- graphs

    def create_graph(self) -> Any:
        """A graph to capture into, or None where this device has none and work simply runs."""
        return None

    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> AbstractContextManager[Any]:
        return nullcontext()

    def replay_graph(self, graph: Any) -> None:
        raise NotImplementedError(
            f"[accelerator.replay_graph] expected a device that captures graphs, got {self._name}: "
            "what create_graph() answers with None is run again by its caller"
        )

    def is_current_stream_capturing(self) -> bool:
        return False

    # ---- compilation

    def get_compile_backend(self) -> str:
        return self._compile_backend

    def set_compile_backend(self, backend: str) -> None:
        """Raises ValueError for what ``torch.compile`` does not know."""
        known = torch._dynamo.list_backends(exclude_tags=())
        if backend not in known:
            raise ValueError(
                f"[accelerator.set_compile_backend] expected one of {', '.join(known)} for {self._name}, "
                f"got {backend!r}"
            )
        self._compile_backend = backend

    def build_extension(self) -> type:
        """The class for ``cmdclass={"build_ext": ...}`` that builds a user's operator against Octavo."""
        from octavo.build import BuildExtension

        return BuildExtension

    # ---- the launcher

    def set_visible_devices_envs(self, current_env: dict[str, str], local_accelerator_ids: list[int]) -> None:
        """Writes to ``current_env`` that a process sees only these devices."""
        for name in self.visible_devices_envs():
            current_env[name] = ",".join(map(str, local_accelerator_ids))

    def lazy_call(self, callback: Callable[[], Any]) -> None:
        """Calls back when the device is initialized: now, unless torch waits for its first use."""
        getattr(self._torch_module(), "_lazy_call", lambda call: call())(callback)

    def _torch_module(self) -> ModuleType:
        """torch.cuda and its like."""
        module = getattr(torch, self._name, None)
        return self._require("torch_module") if module is None else module
