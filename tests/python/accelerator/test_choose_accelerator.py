# SPDX-License-Identifier: Apache-2.0
import threading
from types import SimpleNamespace

import pytest
from accelerator_classes import ABSENT, ALL

import octavo
from octavo.accelerator import Accelerator, CPU_Accelerator, CUDA_Accelerator, SYCL_Accelerator, XPU_Accelerator
from octavo.info import collect


@pytest.fixture
def only(detection):
    """Makes these device types look as if they were here, and the others not."""

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


@pytest.mark.parametrize(("is_cpu", "chosen"), [(True, CPU_Accelerator), (False, SYCL_Accelerator)])
def test_sycl_is_chosen_by_itself_only_over_a_gpu(only, detection, is_cpu, chosen):
    only(CPU_Accelerator, SYCL_Accelerator)
    facts = SimpleNamespace(is_cpu=is_cpu)
    detection.setattr(octavo._C.sycl, "facts", lambda index: facts)
    assert type(octavo.get_accelerator()) is chosen


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
    with pytest.raises(ValueError, match=r"expected DS_ACCELERATOR as one of cuda, xpu, sycl, cpu, got 'npu'$"):
        octavo.get_accelerator()


def test_a_device_that_is_absent(only, detection):
    only(CPU_Accelerator)
    detection.setattr(XPU_Accelerator, "why_absent", lambda self: "nobody bought one")
    detection.setenv("OCTAVO_ACCELERATOR", "xpu")
    with pytest.raises(NotImplementedError, match=r"OCTAVO_ACCELERATOR=xpu .*got none: nobody bought one$"):
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
        NotImplementedError, match=r"^\[accelerator\.set_accelerator\] expected the device of type "
    ) as no:
        octavo.set_accelerator(absent)
    assert str(no.value).endswith(f"{absent._name}, got none: {absent.why_absent()}")
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
    assert mine.use_host_timers() and mine.resolves_data_dependency()  # they follow what it overrides
    with pytest.raises(NotImplementedError, match="this torch is built without mtia"):
        mine.memory_allocated()
    with pytest.raises(ValueError, match="got 'abacus'"):
        Accelerator("abacus")
