# SPDX-License-Identifier: Apache-2.0
import threading
from types import SimpleNamespace

import pytest
import torch
from accelerator_classes import ABSENT, ALL

import octavo
import octavo.sycl
from octavo.accelerator import (
    Accelerator,
    CPU_Accelerator,
    CUDA_Accelerator,
    SYCL_Accelerator,
    XPU_Accelerator,
    accelerator_named,
)
from octavo.info import collect


@pytest.fixture
def only(detection):
    """Returns a function that makes these device types look as if they were here, and the others not."""

    def choose(*present: type) -> None:
        for make in ALL:
            detection.setattr(make, "is_available", lambda self, here=make in present: here)

    return choose


@pytest.mark.parametrize(
    ("present", "chosen"),
    [
        ([CPU_Accelerator], CPU_Accelerator),
        ([CPU_Accelerator, XPU_Accelerator], XPU_Accelerator),
        ([CPU_Accelerator, XPU_Accelerator, CUDA_Accelerator], CUDA_Accelerator),
    ],
)
def test_the_order_of_detection(only, present, chosen):
    only(*present)
    assert type(octavo.get_accelerator()) is chosen


@pytest.mark.parametrize("is_cpu", [True, False])
def test_sycl_is_never_chosen_unless_it_is_asked_for(only, detection, is_cpu):
    only(CPU_Accelerator, SYCL_Accelerator)
    facts = SimpleNamespace(is_cpu=is_cpu)
    detection.setattr(octavo.sycl, "get_device_properties", lambda index: facts)
    assert type(octavo.get_accelerator()) is CPU_Accelerator
    octavo.set_accelerator(None)
    detection.setenv("OCTAVO_ACCELERATOR", "sycl")
    assert type(octavo.get_accelerator()) is SYCL_Accelerator


def test_an_accelerator_by_its_name(only):
    only(CPU_Accelerator, CUDA_Accelerator)
    assert type(accelerator_named("cpu")) is CPU_Accelerator
    with pytest.raises(ValueError, match=r"the name must be one of cuda, xpu, cpu, sycl, got 'npu'$"):
        accelerator_named("npu")
    with pytest.raises(NotImplementedError, match=r"xpu was asked for, but there is no such device here: "):
        accelerator_named("xpu")


@pytest.mark.parametrize("variable", ["OCTAVO_ACCELERATOR", "DS_ACCELERATOR"])
def test_a_variable_overrides(only, detection, variable):
    only(CPU_Accelerator, CUDA_Accelerator)
    detection.setenv(variable, "cpu")
    assert type(octavo.get_accelerator()) is CPU_Accelerator


def test_octavos_variable_comes_first(only, detection):
    only(CPU_Accelerator, CUDA_Accelerator)
    detection.setenv("DS_ACCELERATOR", "cuda")
    detection.setenv("OCTAVO_ACCELERATOR", "cpu")
    assert type(octavo.get_accelerator()) is CPU_Accelerator


def test_an_unknown_name(detection):
    detection.setenv("DS_ACCELERATOR", "npu")
    with pytest.raises(ValueError, match=r"DS_ACCELERATOR must be one of cuda, xpu, cpu, sycl, got 'npu'$"):
        octavo.get_accelerator()


def test_a_device_that_is_absent(only, detection):
    only(CPU_Accelerator)
    detection.setattr(XPU_Accelerator, "why_absent", lambda self: "nobody bought one")
    detection.setenv("OCTAVO_ACCELERATOR", "xpu")
    with pytest.raises(NotImplementedError, match=r"xpu was asked for, .*: nobody bought one$"):
        octavo.get_accelerator()


def test_info_shows_why_it_cannot_be_had(detection):
    detection.setenv("OCTAVO_ACCELERATOR", "abacus")
    assert "got 'abacus'" in collect()["accelerator"]


def test_what_is_set_stays_until_none_is(detection):
    class Mine(CPU_Accelerator):
        pass

    mine = Mine()
    octavo.set_accelerator(mine)
    assert octavo.get_accelerator() is mine
    octavo.set_accelerator(None)
    assert octavo.get_accelerator() is not mine
    with pytest.raises(TypeError, match=r"expected an octavo\.accelerator\.Accelerator or None, got str"):
        octavo.set_accelerator("cpu")


@pytest.mark.parametrize("make", ABSENT, ids=lambda make: make.__name__)
def test_a_device_that_is_absent_cannot_be_set(detection, make):
    absent = make()
    with pytest.raises(
        NotImplementedError,
        match=r"^\[accelerator\.set_accelerator\] \w+ was asked for, but there is no such device here: ",
    ) as no:
        octavo.set_accelerator(absent)
    assert str(no.value).endswith(absent.why_absent())
    assert octavo.get_accelerator().is_available()


def test_all_threads_get_the_same_one(detection):
    barrier, got = threading.Barrier(8), []

    def get() -> None:
        barrier.wait()
        got.append(octavo.get_accelerator())

    threads = [threading.Thread(target=get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8 and len(set(map(id, got))) == 1


def test_a_third_partys_class_needs_only_a_name():
    class Mine(Accelerator):
        def __init__(self) -> None:
            super().__init__("mtia")

        def is_synchronized_device(self) -> bool:
            return True

    mine = Mine()
    assert mine.device_name(1) == "mtia:1"
    assert mine.use_host_timers() and mine.resolves_data_dependency()  # both follow from what it overrides
    with pytest.raises(NotImplementedError, match="this torch is built without mtia"):
        mine.memory_allocated()
    with pytest.raises(NotImplementedError, match="there is no abacus device here: this torch is built without abacus"):
        Accelerator("abacus").synchronize()


def test_what_follows_from_a_method_follows_its_override():
    class Mine(CPU_Accelerator):
        """An accelerator that overrides some methods, from which others must follow."""

        def is_bf16_supported(self) -> bool:
            return False

        def is_synchronized_device(self) -> bool:
            return False

        def memory_reserved(self, device_index=None) -> int:
            return 8

        def max_memory_reserved(self, device_index=None) -> int:
            return 9

        def pinned_zeros(self, shape, dtype, align_bytes=0) -> torch.Tensor:
            return torch.full(tuple(shape), 7, dtype=dtype)

        def visible_devices_envs(self) -> list[str]:
            return ["MINE"]

    mine, environment = Mine(), {}
    assert torch.bfloat16 not in mine.supported_dtypes()
    assert not (mine.use_host_timers() or mine.resolves_data_dependency() or mine.handles_memory_backpressure())
    assert (mine.memory_cached(), mine.max_memory_cached()) == (8, 9)
    assert mine.pin_memory(torch.ones(2), make_copy=False).tolist() == [7, 7]
    mine.set_visible_devices_envs(environment, [1])
    assert environment == {"MINE": "1"}


def test_devices_and_memory_follow_their_overrides():
    asked = []
    module = SimpleNamespace(
        is_available=lambda: True,
        synchronize=asked.append,
        manual_seed_all=asked.append,
        mem_get_info=lambda device: (100, 1000),
    )

    class Mine(Accelerator):
        def __init__(self) -> None:
            super().__init__("mtia")

        def _torch_module(self, function: str):
            return module

        def device_count(self) -> int:
            return 4

        def current_device(self) -> int:
            return 3

        def memory_allocated(self, device_index=None) -> int:
            return 50

        def memory_reserved(self, device_index=None) -> int:
            return 80

    mine = Mine()
    assert mine.is_available() and mine.current_device_name() == "mtia:3"
    mine.synchronize()
    mine.synchronize(2)
    assert asked == [torch.device("mtia:3"), torch.device("mtia:2")]
    with pytest.raises(
        ValueError, match=r"^\[accelerator\.synchronize\] expected the index of one of 4 mtia devices, got 4$"
    ):
        mine.synchronize(4)
    assert mine.available_memory() == 100 + (80 - 50) and mine.total_memory() == 1000
