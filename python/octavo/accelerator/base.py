# SPDX-License-Identifier: Apache-2.0
"""The base of all accelerators: each method with its default, which asks torch's module for the device type."""

from __future__ import annotations

import importlib
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch
from torch import Generator, Tensor
from torch.profiler import record_function

from octavo.accelerator.device_index import DeviceIndex, torch_index_of
from octavo.accelerator.pinned import Pinning
from octavo.accelerator.tensors import TensorTypes, require_tensor


class _OpenRanges(threading.local):
    def __init__(self) -> None:
        self.stack: list[record_function] = []


_open_ranges = _OpenRanges()


# What to do where DeepSpeed, which reads DS_ACCELERATOR too, does not know the accelerator that it names.
NAME_ANOTHER_TO_DEEPSPEED = (
    "Unset DS_ACCELERATOR, or set it to a name that DeepSpeed knows; set OCTAVO_ACCELERATOR for sycl, which only "
    "Octavo has"
)


class Accelerator(TensorTypes, Pinning):
    """What a training loop asks of a device type, under the names of DeepSpeed's accelerator.

    Every method is defined here once, by torch's module for the device type (``torch.cuda`` and its like) and by the
    other methods. A subclass for another device type gives its name in torch and overrides what differs; the methods
    that follow from an overridden one follow the override. An accelerator can be made, and asked for its constants,
    where its device is absent; what needs the device raises NotImplementedError, which says why it is absent.

    Any thread may call it; the current device and the current stream are the thread's own. A ``device_index`` may be
    any ``DeviceIndex``. Raises ValueError for an index that the device type does not have and for a device of another
    type, TypeError for anything else. Memory is in bytes.
    """

    supports_nvtx_domain = False
    """Whether ``range_push`` and ``range_pop`` use the argument ``domain``."""

    def __init__(self, name: str) -> None:
        """``name``: the device type as torch spells it, also where this torch does not know it."""
        self._name = name
        self._compile_backend = "inductor"
        self._known_streams: weakref.WeakValueDictionary[tuple[int, int], Any] = weakref.WeakValueDictionary()

    def __getstate__(self) -> dict[str, Any]:
        """Returns all attributes except the streams, which are this process's own."""
        return {name: value for name, value in vars(self).items() if name != "_known_streams"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _known_streams=weakref.WeakValueDictionary())

    # ---- behaviour

    def is_synchronized_device(self) -> bool:
        """Whether operations are finished when they return."""
        return False

    def use_host_timers(self) -> bool:
        """Whether to time with the host's clock, because events are missing or unreliable."""
        return self.is_synchronized_device()

    def resolves_data_dependency(self) -> bool:
        """Whether work on one stream sees what was submitted before to another without waiting for an event."""
        return self.is_synchronized_device()

    def handles_memory_backpressure(self) -> bool:
        """Whether the host cannot submit work, and allocate for it, ahead of the device."""
        return self.is_synchronized_device()

    def is_host_processor(self) -> bool:
        """Whether the device is the processor that this program runs on, which all local ranks share."""
        return False

    # ---- devices

    def is_available(self) -> bool:
        return self.device_count() > 0

    def make_present(self) -> None:
        """Makes the device available where it is asked for by name. torch's own devices need nothing."""

    def why_absent(self) -> str:
        """Returns why ``is_available()`` is False, in a few words; an empty text where it is True."""
        if self.is_available():
            return ""
        module = getattr(torch, self._name, None)
        is_compiled = getattr(module, "_is_compiled", lambda: module is not None)
        return "this process sees none" if is_compiled() else f"this torch is built without {self._name}"

    def device_name(self, device_index: DeviceIndex = None) -> str:
        """Returns ``cuda``, for example, or ``cuda:1`` with an index."""
        index = torch_index_of(device_index, self._name, "device_name")
        return self._name if index is None else f"{self._name}:{index}"

    def device(self, device_index: DeviceIndex = None) -> torch.device:
        index = torch_index_of(device_index, self._name, "device")
        return torch.device(self._name) if index is None else torch.device(self._name, index)

    def device_count(self) -> int:
        module = getattr(torch, self._name, None)
        return module.device_count() if module is not None and module.is_available() else 0

    def current_device(self) -> int:
        return self._live_module("current_device").current_device()

    def current_device_name(self) -> str:
        return self.device_name(self.current_device())

    def set_device(self, device_index: DeviceIndex) -> None:
        self._ask("set_device", device_index)

    def synchronize(self, device_index: DeviceIndex = None) -> None:
        """Waits for all work on all streams of the device."""
        self._ask("synchronize", device_index)

    def on_accelerator(self, tensor: Tensor) -> bool:
        require_tensor(tensor, "on_accelerator")
        return tensor.device.type == self._name

    # ---- random numbers; a seed may be set before the device is first used

    def random(self) -> ModuleType:
        """Returns torch's module of random-number functions for this device type."""
        return getattr(self._torch_module("random"), "random", torch.random)

    def default_generator(self, device_index: DeviceIndex = None) -> Generator:
        device, module = self._require("default_generator", device_index), self._torch_module("default_generator")
        module.init()  # which makes the generators
        return module.default_generators[device.index]

    def get_rng_state(self, device_index: DeviceIndex = None) -> Tensor:
        """Returns a copy of the generator's state, uint8[n] on the CPU."""
        return self._ask("get_rng_state", device_index)

    def set_rng_state(self, new_state: Tensor, device_index: DeviceIndex = None) -> None:
        device = self._require("set_rng_state", device_index)
        self._torch_module("set_rng_state").set_rng_state(new_state, device)

    def manual_seed(self, seed: int) -> None:
        """Sets the seed of the current device. A negative seed is taken modulo 2^64, as torch does."""
        self._live_module("manual_seed").manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Sets the seed of all devices of this type."""
        self._live_module("manual_seed_all").manual_seed_all(seed)

    def initial_seed(self) -> int:
        """Returns the seed that was set last, which torch calls initial."""
        return self._live_module("initial_seed").initial_seed()

    # ---- streams and events

    @property
    def Stream(self) -> type:
        return self._torch_module("Stream").Stream

    @property
    def Event(self) -> type:
        return self._torch_module("Event").Event

    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Returns the context in which ``stream`` is current; None changes nothing. Raises ValueError for another
        device's stream, TypeError for what is no stream."""
        if stream is None:
            return nullcontext()
        self._require_own_stream(stream)
        return self._torch_module("stream").stream(stream)

    def _require_own_stream(self, stream: Any) -> None:
        if not isinstance(stream, torch.Stream):
            name = type(stream).__name__
            raise TypeError(f"[accelerator.stream] expected a stream of {self._name} or None, got {name}")
        if stream.device.type != self._name:
            raise ValueError(f"[accelerator.stream] expected a stream of {self._name}, got one of {stream.device}")

    def current_stream(self, device_index: DeviceIndex = None) -> Any:
        """Returns the current stream. While it stays current and referenced, every call returns the same object."""
        return self._known(self._ask("current_stream", device_index))

    def default_stream(self, device_index: DeviceIndex = None) -> Any:
        return self._known(self._ask("default_stream", device_index))

    def _known(self, stream: Any) -> Any:
        return self._known_streams.setdefault((stream.device_index, stream.stream_id), stream)

    # ---- memory, in bytes; torch's allocators reserve what they cache, and reset all peaks together

    def empty_cache(self) -> None:
        self._live_module("empty_cache").empty_cache()

    def memory_allocated(self, device_index: DeviceIndex = None) -> int:
        """Returns the bytes of live tensors."""
        return self._ask("memory_allocated", device_index)

    def max_memory_allocated(self, device_index: DeviceIndex = None) -> int:
        return self._ask("max_memory_allocated", device_index)

    def memory_reserved(self, device_index: DeviceIndex = None) -> int:
        """Returns the bytes taken from the driver: live tensors and the allocator's cache."""
        return self._ask("memory_reserved", device_index)

    def max_memory_reserved(self, device_index: DeviceIndex = None) -> int:
        return self._ask("max_memory_reserved", device_index)

    def reset_peak_memory_stats(self, device_index: DeviceIndex = None) -> None:
        self._ask("reset_peak_memory_stats", device_index)

    def memory_stats(self, device_index: DeviceIndex = None) -> dict[str, Any]:
        """Returns bytes and counts under torch's keys, ``allocated_bytes.all.peak`` and so on."""
        return dict(self._ask("memory_stats", device_index))

    def total_memory(self, device_index: DeviceIndex = None) -> int:
        device = self._require("total_memory", device_index)
        return self._torch_module("total_memory").mem_get_info(device)[1]

    def available_memory(self, device_index: DeviceIndex = None) -> int:
        """Returns the bytes that this process could still allocate: what is free on the device, considering other
        processes, and this process's own cache.

        It is at most the total less the live tensors: a system that provides pages at their first use counts those not
        yet used as free.
        """
        device = self._require("available_memory", device_index)
        free, total = self._torch_module("available_memory").mem_get_info(device)
        allocated = self.memory_allocated(device)
        cached = self.memory_reserved(device) - allocated
        return max(0, min(free + cached, total - allocated))

    # older names

    def memory_cached(self, device_index: DeviceIndex = None) -> int:
        return self.memory_reserved(device_index)

    def max_memory_cached(self, device_index: DeviceIndex = None) -> int:
        return self.max_memory_reserved(device_index)

    def reset_max_memory_allocated(self, device_index: DeviceIndex = None) -> None:
        self.reset_peak_memory_stats(device_index)

    def reset_max_memory_cached(self, device_index: DeviceIndex = None) -> None:
        self.reset_peak_memory_stats(device_index)

    # ---- precisions of the current device; True where no device is present

    def is_bf16_supported(self) -> bool:
        return True

    def is_fp16_supported(self) -> bool:
        return True

    def is_fp64_supported(self) -> bool:
        return True

    def supported_dtypes(self) -> list[torch.dtype]:
        """Returns float32, and those of float16 and bfloat16 that are supported."""
        halves = {torch.float16: self.is_fp16_supported(), torch.bfloat16: self.is_bf16_supported()}
        return [torch.float32, *(dtype for dtype, supported in halves.items() if supported)]

    def is_triton_supported(self) -> bool:
        return False

    def prefer_triton_grouped_mm(self) -> bool:
        return False

    # ---- ranges in a profile

    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> None:
        """Opens a range named ``msg`` in torch's profile of this thread."""
        entered = record_function(msg)
        entered.__enter__()
        _open_ranges.stack.append(entered)

    def range_pop(self, domain: str | None = None) -> None:
        """Closes the range that this thread opened last. Raises RuntimeError where none is open."""
        if not _open_ranges.stack:
            raise RuntimeError("[accelerator.range_pop] no range is open in this thread: call range_push first")
        _open_ranges.stack.pop().__exit__(None, None, None)

    # ---- graphs

    def create_graph(self) -> Any:
        """Returns a graph to capture work into, or None where this device has no graphs and work runs at once."""
        return None

    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> AbstractContextManager[Any]:
        return nullcontext()

    def replay_graph(self, graph: Any) -> None:
        raise NotImplementedError(
            f"[accelerator.replay_graph] {self._name} does not capture graphs: create_graph() returned None, so the "
            "caller must run the work again"
        )

    def is_current_stream_capturing(self) -> bool:
        return False

    # ---- compilation

    def get_compile_backend(self) -> str:
        return self._compile_backend

    def set_compile_backend(self, backend: str) -> None:
        """Sets the backend of ``torch.compile``. Raises ValueError for one that torch does not know."""
        known = torch._dynamo.list_backends(exclude_tags=())
        if backend not in known:
            raise ValueError(
                f"[accelerator.set_compile_backend] expected one of {', '.join(known)} for {self._name}, "
                f"got {backend!r}"
            )
        self._compile_backend = backend

    def build_extension(self) -> type:
        """Returns the class for ``cmdclass={"build_ext": ...}`` that builds a user's operator against Octavo."""
        from octavo.build import BuildExtension

        return BuildExtension

    # ---- DeepSpeed's builders of native operators; ImportError where DeepSpeed is not installed

    def op_builder_dir(self) -> str:
        """Returns the name of the module with the builders for this device type. Those for cpu serve where the host
        does the work."""
        return "deepspeed.ops.op_builder.cpu"

    def get_op_builder(self, class_name: str) -> type:
        """Returns the builder's class. For a name that this device type lacks, returns a class that says so when it is
        used."""
        try:
            module = importlib.import_module(self.op_builder_dir())
        except ModuleNotFoundError as missing:
            raise ImportError(
                "[accelerator.get_op_builder] the builders are those of the package deepspeed, which does not import: "
                f"{missing}"
            ) from missing
        except ValueError as unknown:
            raise ImportError(
                f"[accelerator.get_op_builder] the package deepspeed does not import: {unknown}. "
                f"{NAME_ANOTHER_TO_DEEPSPEED}"
            ) from unknown
        return getattr(module, class_name, None) or module.NotImplementedBuilder

    def create_op_builder(self, class_name: str) -> Any:
        return self.get_op_builder(class_name)()

    # ---- the launcher

    def communication_backend_name(self) -> str:
        """Returns the name of c10d's back end."""
        return "gloo"

    def visible_devices_envs(self) -> list[str]:
        """Returns the environment variables that choose which devices a process sees."""
        return []

    def set_visible_devices_envs(self, current_env: dict[str, str], local_accelerator_ids: list[int]) -> None:
        """Writes to ``current_env``, an environment, that a process sees only the devices ``local_accelerator_ids``."""
        for name in self.visible_devices_envs():
            current_env[name] = ",".join(map(str, local_accelerator_ids))

    def export_envs(self) -> list[str]:
        """Returns prefixes of the environment variables that a launcher passes on to other hosts."""
        return []

    def lazy_call(self, callback: Callable[[], Any]) -> None:
        """Calls ``callback`` when the device is initialized: at once, unless torch waits for the device's first use."""
        getattr(self._torch_module("lazy_call"), "_lazy_call", lambda call: call())(callback)

    # ---- for subclasses

    def _torch_module(self, function: str) -> ModuleType:
        """Returns ``torch.cuda`` or its like, also where no device is present. Raises NotImplementedError where torch
        does not know the device type."""
        module = getattr(torch, self._name, None)
        if module is None:
            raise self._absence(function)
        return module

    def _live_module(self, function: str) -> ModuleType:
        """Returns torch's module. Raises NotImplementedError `[accelerator.function]` where no device is here."""
        if self.device_count() == 0:
            raise self._absence(function)
        return self._torch_module(function)

    def _absence(self, function: str) -> NotImplementedError:
        return NotImplementedError(
            f"[accelerator.{function}] there is no {self._name} device here: {self.why_absent()}"
        )

    def _require(self, function: str, device_index: DeviceIndex = None) -> torch.device:
        """Returns the device with its index. Raises NotImplementedError `[accelerator.function]` where no device is
        here, ValueError for an index that the device type does not have."""
        self._live_module(function)
        index = torch_index_of(device_index, self._name, function)
        if index is None:
            return self.device(self.current_device())
        if index >= (count := self.device_count()):
            raise ValueError(
                f"[accelerator.{function}] expected the index of one of {count} {self._name} devices, got {index}"
            )
        return self.device(index)

    def _ask(self, function: str, device_index: DeviceIndex) -> Any:
        """Returns what ``function`` of torch's module returns for the device."""
        device = self._require(function, device_index)
        return getattr(self._torch_module(function), function)(device)
