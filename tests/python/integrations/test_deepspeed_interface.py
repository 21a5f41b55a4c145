# SPDX-License-Identifier: Apache-2.0
"""Every public name of DeepSpeed's accelerator class under Octavo's: presence, kind and signature.

A release of DeepSpeed that adds a name fails here with that name.
"""

import inspect
from inspect import Parameter

import pytest

from octavo.accelerator import Accelerator, CPU_Accelerator, CUDA_Accelerator

pytest.importorskip("deepspeed", reason="the package deepspeed is not installed: pip install 'octavo[deepspeed]'")

from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator as DeepSpeedsCpu

from octavo.integrations import deepspeed as integration

PUBLIC = sorted(name for name in vars(DeepSpeedAccelerator) if not name.startswith("_"))
HOOKS = sorted(name for name in vars(DeepSpeedAccelerator) if name.startswith("_torch_"))
METHODS = [name for name in PUBLIC if callable(getattr(DeepSpeedAccelerator, name))]
OTHERS = [name for name in PUBLIC if name not in METHODS]


@pytest.fixture(scope="module")
def handed():
    return integration.OctavoAccelerator(CPU_Accelerator())


def test_every_name_is_decided_on():
    own = [name for name in vars(integration.OctavoAccelerator) if not name.startswith("_")]
    decided = [*integration.ASKED_OF_OCTAVO, *integration.KEPT_FROM_DEEPSPEED, *own]
    assert sorted(decided) == PUBLIC


def test_octavos_accelerator_has_every_name_by_itself():
    assert [name for name in PUBLIC if not hasattr(Accelerator, name)] == []


@pytest.mark.parametrize("name", METHODS)
def test_a_method_takes_what_deepspeeds_takes(handed, name):
    theirs = list(inspect.signature(getattr(DeepSpeedAccelerator, name)).parameters.values())[1:]  # without self
    method = getattr(handed, name)
    assert callable(method)
    ours = list(inspect.signature(method).parameters.values())
    for their, our in zip(theirs, ours, strict=False):
        assert (our.name, our.kind) == (their.name, their.kind)
        assert our.default is not Parameter.empty or their.default is Parameter.empty
    assert len(ours) >= len(theirs)
    assert all(more.default is not Parameter.empty for more in ours[len(theirs) :])


@pytest.mark.parametrize("name", [name for name in METHODS if name in integration.ASKED_OF_OCTAVO])
def test_a_method_reaches_the_accelerator_that_was_handed_over(name):
    class Recording(CPU_Accelerator):
        def __getattribute__(self, asked: str):
            return (lambda *arguments: ("asked", arguments)) if asked == name else super().__getattribute__(asked)

    handed = integration.OctavoAccelerator(CPU_Accelerator())
    handed.octavo = Recording()
    assert getattr(handed, name)(1, 2) == ("asked", (1, 2))


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_method_has_a_value_of_its_kind(handed, name):
    value = getattr(handed, name)
    if name == "supports_nvtx_domain":
        assert value is False  # a bool that DeepSpeed reads without calling it
    elif name in ("Stream", "Event"):
        assert isinstance(value, type)
    else:
        assert value([1, 2]).dtype == getattr(DeepSpeedsCpu(), name)([1, 2]).dtype
    assert isinstance(inspect.getattr_static(handed, name), property)


@pytest.mark.parametrize("name", HOOKS)
def test_the_hooks_of_pinning_are_those_that_the_adapter_knows(name):
    known = ("_torch_pin_memory", "_torch_empty_pinned", "_torch_is_pinned", "_torch_pins_host_memory")
    assert name in known
    assert name in vars(integration.OctavoAccelerator) or getattr(integration.OctavoAccelerator, name) is True


def test_a_range_is_pushed_without_a_domain(handed):
    from deepspeed.utils import nvtx

    pushed = []

    class Listening(CPU_Accelerator):
        def range_push(self, *arguments, **named) -> None:
            pushed.append((arguments, named))

    nvtx._range_push(integration.OctavoAccelerator(Listening()), "step")
    assert pushed == [(("step",), {})]


def test_locked_memory_is_told_to_the_devices_driver():
    told = []

    class Driver(CPU_Accelerator):
        def register_host_memory(self, address: int, num_bytes: int) -> bool:
            told.append((address, num_bytes))
            return True

        def unregister_host_memory(self, address: int) -> None:
            told.append(address)

    handed = integration.OctavoAccelerator(Driver())
    assert handed.register_host_memory(4096, 100) is True
    handed.unregister_host_memory(4096)
    assert told == [(4096, 100), 4096]
    assert handed.pin_memory_alignment() == handed.octavo.pin_memory_alignment() > 1
    assert integration.OctavoAccelerator(CPU_Accelerator()).register_host_memory(4096, 100) is False
    assert CUDA_Accelerator.register_host_memory is not Accelerator.register_host_memory
