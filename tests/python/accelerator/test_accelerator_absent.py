# SPDX-License-Identifier: Apache-2.0
"""An accelerator whose device is not here: its constants, and an error of one sentence where it needs the device."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from accelerator_classes import ABSENT

from octavo.accelerator import CPU_Accelerator, CUDA_Accelerator, SYCL_Accelerator, XPU_Accelerator, devices

CONSTANTS = {
    CUDA_Accelerator: ("cuda", "nccl", ["CUDA_VISIBLE_DEVICES"], True),
    XPU_Accelerator: ("xpu", "xccl", ["ZE_AFFINITY_MASK"], False),
    SYCL_Accelerator: ("sycl", "cpu:gloo,sycl:octavo", ["ONEAPI_DEVICE_SELECTOR"], False),
}


@pytest.mark.parametrize("make", CONSTANTS, ids=lambda make: make.__name__)
def test_constants_need_no_device(make):
    name, backend, visible, triton = CONSTANTS[make]
    accelerator = make()
    assert (accelerator.device_name(), accelerator.device_name(3)) == (name, f"{name}:3")
    assert accelerator.communication_backend_name() == backend
    assert accelerator.visible_devices_envs() == visible
    assert accelerator.is_triton_supported() is triton
    assert not accelerator.is_synchronized_device() and not accelerator.use_host_timers()
    assert accelerator.get_compile_backend() == ("aot_eager" if accelerator.device_name() == "sycl" else "inductor")
    assert all(type(prefix) is str for prefix in accelerator.export_envs())


def test_xpu_has_both_half_precisions():
    assert XPU_Accelerator().supported_dtypes() == [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize(
    ("capability", "fp16", "triton"), [((6, 1), False, False), ((7, 5), True, False), ((9, 0), True, True)]
)
def test_a_gpu_is_asked_what_it_is_capable_of(monkeypatch, capability, fp16, triton):
    monkeypatch.setattr(CUDA_Accelerator, "is_available", lambda self: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: triton)
    cuda = CUDA_Accelerator()
    assert (cuda.is_fp16_supported(), cuda.is_triton_supported(), cuda.is_bf16_supported()) == (fp16, triton, triton)
    assert (torch.float16 in cuda.supported_dtypes()) is fp16


@pytest.mark.parametrize("has_fp64", [True, False])
def test_xpu_is_asked_for_double_precision(monkeypatch, has_fp64):
    monkeypatch.setattr(XPU_Accelerator, "is_available", lambda self: True)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda *_: SimpleNamespace(has_fp64=has_fp64))
    assert XPU_Accelerator().is_fp64_supported() is has_fp64


@pytest.mark.parametrize("has_fp16", [True, False])
def test_sycl_is_asked_for_half_precision(monkeypatch, has_fp16):
    facts = SimpleNamespace(get_device_properties=lambda: SimpleNamespace(has_fp16=has_fp16))
    monkeypatch.setattr(SYCL_Accelerator, "is_available", lambda self: True)
    monkeypatch.setattr(torch, "sycl", facts, raising=False)
    assert SYCL_Accelerator().is_fp16_supported() is has_fp16
    assert (torch.float16 in SYCL_Accelerator().supported_dtypes()) is has_fp16


def test_cuda_registers_memory_that_somebody_else_locked(monkeypatch):
    calls = []
    runtime = SimpleNamespace(
        cudaHostRegister=lambda *arguments: calls.append(arguments) or 0,
        cudaHostUnregister=lambda *arguments: calls.append(arguments) or 0,
    )
    module = SimpleNamespace(cudart=lambda: runtime)
    monkeypatch.setattr(CUDA_Accelerator, "_live_module", lambda self, function: module)
    monkeypatch.setattr(torch.cuda, "check_error", lambda result: calls.append(result))
    cuda = CUDA_Accelerator()
    assert cuda.register_host_memory(4096, 8192) is True
    cuda.unregister_host_memory(4096)
    assert calls == [(4096, 8192, 0), 0, (4096,), 0]


@pytest.mark.parametrize("make", ABSENT, ids=lambda make: make.__name__)
@pytest.mark.parametrize(
    "use",
    [
        lambda absent: absent.set_device(0),
        lambda absent: absent.current_device(),
        lambda absent: absent.synchronize(),
        lambda absent: absent.get_rng_state(),
        lambda absent: absent.manual_seed(1),
        lambda absent: absent.manual_seed_all(1),
        lambda absent: absent.current_stream(),
        lambda absent: absent.default_stream(),
        lambda absent: absent.memory_allocated(),
        lambda absent: absent.max_memory_reserved(),
        lambda absent: absent.available_memory(),
        lambda absent: absent.reset_max_memory_allocated(),
        lambda absent: absent.empty_cache(),
        lambda absent: absent.FloatTensor(3),
        lambda absent: absent.pin_memory(torch.ones(3)),
    ],
)
def test_what_needs_the_device_says_why_it_is_absent(make, use):
    absent = make()
    assert absent.device_count() == 0 and absent.why_absent()
    with pytest.raises(NotImplementedError) as raised:
        use(absent)
    name = absent.device_name()
    assert str(raised.value).endswith(f"] there is no {name} device here: {absent.why_absent()}")


@pytest.mark.parametrize("make", [XPU_Accelerator, CPU_Accelerator], ids=lambda make: make.__name__)
def test_ccl_where_its_bindings_import(make, monkeypatch):
    assert make().communication_backend_name() != "ccl"
    devices._has_oneccl.cache_clear()
    monkeypatch.setitem(sys.modules, "oneccl_bindings_for_pytorch", ModuleType("oneccl_bindings_for_pytorch"))
    assert make().communication_backend_name() == "ccl"
    devices._has_oneccl.cache_clear()


@pytest.mark.parametrize(
    ("installed", "unreliable"), [("2.1.30+xpu", True), ("2.5.10", True), ("2.6.10+xpu", False), ("2.10.0", False)]
)  # 2.10 is later than 2.6, but not in the order of strings
def test_host_timers_where_old_extensions_make_events_unreliable(installed, unreliable, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda package: installed)
    assert XPU_Accelerator().use_host_timers() is unreliable


def test_the_default_stream_of_xpu_is_the_current_one(monkeypatch):
    stream = torch.Stream(stream_id=5, device_index=-1, device_type=0)
    monkeypatch.setattr(torch.xpu, "current_stream", lambda device: stream.__class__(device="cpu"))
    monkeypatch.setattr(XPU_Accelerator, "_require", lambda *_: torch.device("xpu", 0))
    xpu = XPU_Accelerator()
    default, current = xpu.default_stream(), xpu.current_stream()
    assert default is current


def test_the_module_has_deepspeeds_name():
    from octavo.accelerator.xpu_accelerator import XPU_Accelerator as by_module

    assert by_module is XPU_Accelerator
