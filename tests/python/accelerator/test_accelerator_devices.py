# SPDX-License-Identifier: Apache-2.0
"""Devices, precisions, tensor types, ranges, graphs: the same tests on every accelerator that is here."""

import copy
import pickle

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import octavo
from octavo.accelerator import CUDA_Accelerator

TYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
}


def test_devices_are_what_torch_calls_them(accelerator):
    assert accelerator.device_count() >= 1
    assert type(accelerator.current_device()) is int
    accelerator.set_device(0)
    assert accelerator.current_device() == 0
    tensor = torch.ones(3, device=accelerator.device(0))
    assert accelerator.on_accelerator(tensor)
    assert torch.ones(3, device=accelerator.device()).device.type == tensor.device.type
    assert torch.device(accelerator.device_name(0)) == accelerator.device(0)
    assert torch.device(accelerator.current_device_name()) == accelerator.device(accelerator.current_device())
    assert not accelerator.on_accelerator(torch.ones(3, device="meta"))


OF_A_DEVICE = [
    "available_memory",
    "current_stream",
    "default_generator",
    "default_stream",
    "device",
    "device_name",
    "get_rng_state",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "set_device",
    "synchronize",
    "total_memory",
]


@pytest.mark.parametrize("name", OF_A_DEVICE)
def test_an_index_that_is_no_device(accelerator, name):
    for index in (-1, "-1"):
        with pytest.raises(ValueError, match=r"^\[accelerator\.\w+\] expected .*index.*, got -1$"):
            getattr(accelerator, name)(index)


@pytest.mark.parametrize("name", OF_A_DEVICE)
def test_what_names_a_device(accelerator, name):
    call = getattr(accelerator, name)
    tensor = torch.ones(1, device=accelerator.device(0))
    for asked in (0, "0", tensor.device, accelerator.device(), accelerator.device_name(0)):
        call(asked)
    for asked in (torch.device("meta"), "meta:0", "abacus"):
        with pytest.raises(ValueError, match=rf"^\[accelerator\.\w+\] expected .*{accelerator._name}, got "):
            call(asked)
    for asked in (0.5, True, [0]):
        complaint = rf"^\[accelerator\.\w+\] expected an int, .*, got {type(asked).__name__}$"
        with pytest.raises(TypeError, match=complaint):
            call(asked)


@pytest.mark.parametrize("asked", [128, 256, 2**40, "300", "cuda:128", "cuda:256"])
def test_an_index_that_torch_cannot_hold(asked):
    """torch.device("cuda", 256) is cuda:0."""
    absent, number = CUDA_Accelerator(), str(asked).removeprefix("cuda:")
    complaint = rf"^\[accelerator\.\w+\] expected the index of a device, which is from 0 to 127, got {number}$"
    for call in (absent.device, absent.device_name):
        assert torch.device(call(127)) == torch.device("cuda", 127)
        with pytest.raises(ValueError, match=complaint):
            call(asked)


def test_what_is_no_tensor_is_on_no_device(accelerator):
    with pytest.raises(TypeError, match=r"^\[accelerator\.on_accelerator\] expected a torch\.Tensor, got int$"):
        accelerator.on_accelerator(3)


def test_an_accelerator_is_pickled_without_its_streams(accelerator):
    stream = accelerator.current_stream()
    accelerator.set_compile_backend("eager")
    for other in (pickle.loads(pickle.dumps(accelerator)), copy.deepcopy(accelerator)):
        assert type(other) is type(accelerator) and other.get_compile_backend() == "eager"
        assert other.device_name() == accelerator.device_name() and other.current_stream() == stream
    assert accelerator.current_stream() is stream
    make = pickle.loads(pickle.dumps(accelerator.FloatTensor))
    assert isinstance(make([1, 2]), accelerator.FloatTensor)


def test_there_is_no_reason_why_a_device_that_is_here_is_absent(accelerator):
    assert accelerator.why_absent() == ""


def test_the_flags_agree(accelerator):
    synchronized = accelerator.is_synchronized_device()
    assert synchronized == (accelerator.device().type == "cpu")
    assert accelerator.resolves_data_dependency() == synchronized
    assert accelerator.handles_memory_backpressure() == synchronized
    assert accelerator.use_host_timers() or not synchronized


def test_every_supported_dtype_computes(accelerator):
    assert accelerator.is_bf16_supported() in (True, False)  # upstream returns None
    assert accelerator.is_fp16_supported() in (True, False)
    for dtype in accelerator.supported_dtypes():
        ones = torch.ones(16, 16, dtype=dtype, device=accelerator.device(0))
        assert torch.equal((ones @ ones).float().cpu(), torch.full((16, 16), 16.0))


@pytest.mark.parametrize("name", TYPES)
def test_tensor_types_are_called_as_legacy_ones(accelerator, name):
    make = getattr(accelerator, name)
    assert make(3).shape == (3,)
    assert make(2, 3).shape == make(torch.Size([2, 3])).shape == (2, 3)
    assert make().shape == (0,)
    for data in ([1, 2], (1, 2), torch.tensor([1, 2])):
        tensor = make(data)
        assert tensor.tolist() == [1, 2]
        assert tensor.dtype == TYPES[name] and accelerator.on_accelerator(tensor)
        assert isinstance(tensor, make)
    assert not isinstance(torch.ones(1, dtype=torch.int8, device=accelerator.device()), make)
    with pytest.raises(TypeError, match=r"^\[accelerator\.tensors\]"):
        make([1], [2])


def test_ranges_are_in_the_profile(accelerator):
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        accelerator.range_push("outer")
        accelerator.range_push("inner", domain="any", category="any")
        accelerator.range_pop()
        accelerator.range_pop(domain="any")
    assert {"outer", "inner"} <= {event.name for event in recorded.events()}
    with pytest.raises(RuntimeError, match="range_push"):
        accelerator.range_pop()


def test_graphs_replay_or_say_that_they_cannot(accelerator):
    total = torch.zeros(4, device=accelerator.device(0))
    total.add_(1)  # the first use of the kernel must not be in a capture
    total.zero_()
    graph = accelerator.create_graph()
    with accelerator.capture_to_graph(graph):
        total.add_(1)
    if graph is None:
        assert total.tolist() == [1] * 4
        with pytest.raises(NotImplementedError, match="replay_graph"):
            accelerator.replay_graph(graph)
    else:
        accelerator.replay_graph(graph)
        accelerator.synchronize()
        assert total.tolist() == [1] * 4
    assert accelerator.is_current_stream_capturing() is False


def test_the_compile_backend_is_checked(accelerator):
    assert accelerator.get_compile_backend() == ("aot_eager" if accelerator.device_name() == "sycl" else "inductor")
    accelerator.set_compile_backend("eager")
    assert accelerator.get_compile_backend() == "eager"
    with pytest.raises(ValueError, match=r"expected one of .*inductor.*, got 'turbo'"):
        accelerator.set_compile_backend("turbo")


def test_lazy_calls_are_made_once_the_device_is_in_use(accelerator):
    torch.ones(1, device=accelerator.device(0))
    calls = []
    accelerator.lazy_call(lambda: calls.append(1))
    assert calls == [1]


def test_visible_devices_are_written_to_the_environment_given(accelerator):
    environment = {"PATH": "/bin"}
    accelerator.set_visible_devices_envs(environment, [1, 3])
    assert set(environment) == {"PATH", *accelerator.visible_devices_envs()}
    for name in accelerator.visible_devices_envs():
        assert environment[name].endswith("1,3")


def test_info_names_the_accelerator(accelerator):
    octavo.set_accelerator(accelerator)
    try:
        from octavo.info import collect

        assert collect()["accelerator"] == accelerator.current_device_name()
    finally:
        octavo.set_accelerator(None)
