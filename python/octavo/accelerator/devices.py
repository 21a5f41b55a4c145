# SPDX-License-Identifier: Apache-2.0
"""The accelerators: what differs from the defaults on each device type."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Generator, Tensor

from octavo import _C
from octavo.accelerator import host_streams
from octavo.accelerator.base import Accelerator
from octavo.accelerator.device_index import DeviceIndex, index_of


class CPU_Accelerator(Accelerator):
    """The host: a single device, ``cpu``, which all local ranks share. Any index means that device.

    torch's allocator for the CPU counts nothing. Memory is that of the process as Linux accounts for it:
    ``memory_allocated`` and ``memory_reserved`` are its resident bytes (VmRSS), and their peaks are VmHWM, which the
    kernel keeps. Total and available memory are the machine's, or the control group's where that has a limit.
    """

    def __init__(self) -> None:
        super().__init__("cpu")

    def is_synchronized_device(self) -> bool:
        return True

    def is_host_processor(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def device_name(self, device_index: DeviceIndex = None) -> str:
        return self._require("device_name", device_index).type

    def device(self, device_index: DeviceIndex = None) -> torch.device:
        return self._require("device", device_index)

    def set_device(self, device_index: DeviceIndex) -> None:
        self._require("set_device", device_index)

    def synchronize(self, device_index: DeviceIndex = None) -> None:
        self._require("synchronize", device_index)

    # ---- random numbers: only of the CPU's generator, while torch.manual_seed seeds those of all devices

    def default_generator(self, device_index: DeviceIndex = None) -> Generator:
        self._require("default_generator", device_index)
        return torch.default_generator

    def get_rng_state(self, device_index: DeviceIndex = None) -> Tensor:
        return self.default_generator(device_index).get_state()

    def set_rng_state(self, new_state: Tensor, device_index: DeviceIndex = None) -> None:
        self.default_generator(device_index).set_state(new_state)

    def manual_seed(self, seed: int) -> None:
        self.default_generator().manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        self.manual_seed(seed)

    def initial_seed(self) -> int:
        return self.default_generator().initial_seed()

    # ---- streams and events

    @property
    def Stream(self) -> type:
        return host_streams.Stream

    @property
    def Event(self) -> type:
        return host_streams.Event

    @contextmanager
    def stream(self, stream: torch.Stream | None) -> Iterator[torch.Stream | None]:
        if stream is None:
            yield None
            return
        self._require_own_stream(stream)
        previous = host_streams.exchange(stream)
        try:
            yield stream
        finally:
            host_streams.exchange(previous)

    def current_stream(self, device_index: DeviceIndex = None) -> Any:
        self._require("current_stream", device_index)
        return self._known(host_streams.current())

    def default_stream(self, device_index: DeviceIndex = None) -> Any:
        self._require("default_stream", device_index)
        return self._known(host_streams.Stream(stream_id=host_streams.DEFAULT_ID))

    # ---- memory

    def empty_cache(self) -> None:
        """Does nothing: nothing is cached."""

    def memory_allocated(self, device_index: DeviceIndex = None) -> int:
        return self._memory("memory_allocated", device_index).resident_bytes()

    def max_memory_allocated(self, device_index: DeviceIndex = None) -> int:
        return self._memory("max_memory_allocated", device_index).peak_resident_bytes()

    def memory_reserved(self, device_index: DeviceIndex = None) -> int:
        return self._memory("memory_reserved", device_index).resident_bytes()

    def max_memory_reserved(self, device_index: DeviceIndex = None) -> int:
        return self._memory("max_memory_reserved", device_index).peak_resident_bytes()

    def reset_peak_memory_stats(self, device_index: DeviceIndex = None) -> None:
        self._memory("reset_peak_memory_stats", device_index).reset_peak_resident()

    def memory_stats(self, device_index: DeviceIndex = None) -> dict[str, Any]:
        host = self._memory("memory_stats", device_index)
        figures = {"current": host.resident_bytes(), "peak": host.peak_resident_bytes()}
        names = ("allocated_bytes", "reserved_bytes")
        return {f"{name}.all.{which}": figure for name in names for which, figure in figures.items()}

    def total_memory(self, device_index: DeviceIndex = None) -> int:
        return self._memory("total_memory", device_index).total_bytes()

    def available_memory(self, device_index: DeviceIndex = None) -> int:
        return self._memory("available_memory", device_index).available_bytes()

    def _memory(self, function: str, device_index: DeviceIndex) -> _C.HostMemory:
        self._require(function, device_index)
        return _C.HostMemory()

    # ---- precisions and constants

    def is_fp16_supported(self) -> bool:
        """Whether oneDNN computes in float16 on this processor; elsewhere float16 is only emulated."""
        return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_fp16_supported()

    def communication_backend_name(self) -> str:
        """Returns ``ccl`` where oneCCL's bindings can be imported, otherwise ``gloo``."""
        return "ccl" if _has_oneccl() else super().communication_backend_name()

    def visible_devices_envs(self) -> list[str]:
        """Returns CUDA_VISIBLE_DEVICES. Nothing hides a CPU, but DeepSpeed's launcher takes the first name of this list
        unchecked."""
        return ["CUDA_VISIBLE_DEVICES"]

    def lazy_call(self, callback: Any) -> None:
        callback()

    def _require(self, function: str, device_index: DeviceIndex = None) -> torch.device:
        index_of(device_index, "cpu", function)
        return torch.device("cpu")


class CUDA_Accelerator(Accelerator):
    """GPUs that torch.cuda knows, also those of ROCm."""

    def __init__(self) -> None:
        super().__init__("cuda")

    def is_bf16_supported(self) -> bool:
        return not self.is_available() or torch.cuda.is_bf16_supported()

    def is_fp16_supported(self) -> bool:
        """Whether the GPU is a Volta (7.0) or later. Earlier ones compute more slowly in float16 than in float32."""
        return self._has_capability(7)

    def is_triton_supported(self) -> bool:
        """Whether the GPU is an Ampere (8.0) or later."""
        return self._has_capability(8)

    def _has_capability(self, major: int) -> bool:
        return not self.is_available() or torch.cuda.get_device_capability()[0] >= major

    def register_host_memory(self, address: int, num_bytes: int) -> bool:
        runtime = self._live_module("register_host_memory").cudart()
        torch.cuda.check_error(int(runtime.cudaHostRegister(address, num_bytes, 0)))
        return True

    def unregister_host_memory(self, address: int) -> None:
        runtime = self._live_module("unregister_host_memory").cudart()
        torch.cuda.check_error(int(runtime.cudaHostUnregister(address)))

    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> None:
        """Opens a range in torch's profile, and in NVTX for the tools that read it."""
        super().range_push(msg)
        if self.is_available():
            torch.cuda.nvtx.range_push(msg)

    def range_pop(self, domain: str | None = None) -> None:
        super().range_pop()
        if self.is_available():
            torch.cuda.nvtx.range_pop()

    def create_graph(self) -> Any:
        return self._live_module("create_graph").CUDAGraph()

    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> AbstractContextManager[Any]:
        return self._live_module("capture_to_graph").graph(graph, pool, stream)

    def replay_graph(self, graph: Any) -> None:
        graph.replay()

    def is_current_stream_capturing(self) -> bool:
        return self.is_available() and torch.cuda.is_current_stream_capturing()

    def op_builder_dir(self) -> str:
        return "deepspeed.ops.op_builder"

    def communication_backend_name(self) -> str:
        return "nccl"

    def visible_devices_envs(self) -> list[str]:
        return ["CUDA_VISIBLE_DEVICES"]

    def export_envs(self) -> list[str]:
        return ["NCCL"]


class XPU_Accelerator(Accelerator):
    """Intel GPUs that torch.xpu knows: both half precisions, no Triton."""

    def __init__(self) -> None:
        super().__init__("xpu")

    def use_host_timers(self) -> bool:
        """Whether to time with the host's clock: True with Intel's extension for PyTorch before 2.6, whose events
        report wrong times."""
        extension = _release("intel_extension_for_pytorch")
        return extension < (2, 6) if extension is not None else super().use_host_timers()

    def default_stream(self, device_index: DeviceIndex = None) -> Any:
        """Returns the current stream. XPU has no default stream that the others wait for, as CUDA has."""
        return self.current_stream(device_index)

    def is_fp64_supported(self) -> bool:
        """Whether the device has double precision, which many GPUs of the Arc series lack."""
        return not self.is_available() or torch.xpu.get_device_properties().has_fp64

    def op_builder_dir(self) -> str:
        return "deepspeed.ops.op_builder.xpu"

    def communication_backend_name(self) -> str:
        """Returns ``ccl`` where oneCCL's bindings can be imported, otherwise torch's own ``xccl``."""
        return "ccl" if _has_oneccl() else "xccl"

    def visible_devices_envs(self) -> list[str]:
        return ["ZE_AFFINITY_MASK"]


class SYCL_Accelerator(Accelerator):
    """Any SYCL device, as Octavo's torch device ``sycl``: a GPU where SYCL's run time has one, otherwise the processor.

    Importing ``octavo.sycl`` makes the device, and so does asking for this accelerator by name.
    """

    def __init__(self) -> None:
        super().__init__("sycl")
        self._compile_backend = "aot_eager"  # Inductor generates no code for it

    def make_present(self) -> None:
        from octavo import sycl

        if not sycl.why_missing():
            sycl.register()

    def why_absent(self) -> str:
        if self.is_available():
            return ""
        backend = _C.backend_status("sycl")
        if not backend["available"]:
            return backend["reason"]
        outside = torch._C._get_privateuse1_backend_name()  # torch has one place for another library's device
        if outside not in ("privateuseone", "sycl"):
            return f"another library has made torch's PrivateUse1 the device '{outside}'"
        return "`import octavo.sycl` makes it"

    def device(self, device_index: DeviceIndex = None) -> torch.device:
        self._live_module("device")  # torch knows the name only once there is a device
        return super().device(device_index)

    def is_host_processor(self) -> bool:
        return self.is_available() and torch.sycl.get_device_properties(0).is_cpu

    def is_fp16_supported(self) -> bool:
        return not self.is_available() or torch.sycl.get_device_properties().has_fp16

    def is_fp64_supported(self) -> bool:
        return not self.is_available() or torch.sycl.get_device_properties().has_fp64

    def available_memory(self, device_index: DeviceIndex = None) -> int:
        """Returns the bytes of the largest tensor that can be made. It is less than what is free, because blocks are
        rounded up."""
        return torch.sycl.available_memory(self._require("available_memory", device_index))

    def default_generator(self, device_index: DeviceIndex = None) -> Generator:
        return _C.sycl.default_generator(self._require("default_generator", device_index).index)

    def communication_backend_name(self) -> str:
        """Returns the names of Gloo for both device types: it works on the memory that host and device share."""
        return "cpu:gloo,sycl:octavo"

    def visible_devices_envs(self) -> list[str]:
        return ["ONEAPI_DEVICE_SELECTOR"]

    def set_visible_devices_envs(self, current_env: dict[str, str], local_accelerator_ids: list[int]) -> None:
        """Writes ``*:0,1``, for example, to ``current_env``: the devices with these numbers, of any back end of
        SYCL."""
        current_env["ONEAPI_DEVICE_SELECTOR"] = "*:" + ",".join(map(str, local_accelerator_ids))

    def export_envs(self) -> list[str]:
        return ["ONEAPI", "SYCL", "OCL_ICD"]


@functools.cache
def _has_oneccl() -> bool:
    """Whether oneCCL's bindings, which register the back end ``ccl``, can be imported."""
    try:
        importlib.import_module("oneccl_bindings_for_pytorch")
    except Exception:  # a broken installation raises anything
        return False
    return True


def _release(package: str) -> tuple[int, ...] | None:
    """Returns the numbers of the installed release, such as (2, 10) for 2.10+xpu; None where the package is not
    installed."""
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, leading[0].split("."))) if leading else ()
