# SPDX-License-Identifier: Apache-2.0
"""The real DeepSpeed under Octavo's accelerator, on the CPU."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from fork_server import run_code, run_ranks

import octavo
import octavo.sycl
from octavo.accelerator import Accelerator, CPU_Accelerator, CUDA_Accelerator, SYCL_Accelerator, XPU_Accelerator


def is_here(accelerator: Accelerator) -> bool:
    accelerator.make_present()
    return accelerator.is_available()


HERE = [make for make in (CPU_Accelerator, CUDA_Accelerator, XPU_Accelerator, SYCL_Accelerator) if is_here(make())]


@pytest.fixture
def integration():
    pytest.importorskip("deepspeed", reason="the package deepspeed is not installed: pip install 'octavo[deepspeed]'")
    return importlib.import_module("octavo.integrations.deepspeed")


@pytest.mark.parametrize("make", [CPU_Accelerator, CUDA_Accelerator, XPU_Accelerator])
def test_deepspeeds_class_asks_ours(integration, make):
    ours = make()
    handed = integration.OctavoAccelerator(ours)
    assert (handed._name, handed.device_name(), handed.device_name("1")) == (
        ours.device_name(),
        ours.device_name(),
        ours.device_name(1),
    )
    assert handed.communication_backend_name() == ours.communication_backend_name()
    assert handed.Stream is ours.Stream and handed.is_fp64_supported() is True
    handed.set_compile_backend("eager")
    assert ours.get_compile_backend() == handed.get_compile_backend() == "eager"


def test_pinning_goes_through_deepspeeds_hooks(integration):
    handed = integration.OctavoAccelerator(CPU_Accelerator())
    pinned = handed.pin_memory(torch.arange(5.0))
    assert handed.is_pinned(pinned[1:]) and pinned.tolist() == [0, 1, 2, 3, 4]
    assert handed.is_pinned(handed.pin_empty(3, 4, dtype=torch.float16))
    assert not handed.is_pinned(torch.ones(3))
    for align_bytes in (0, 1):  # the values that DeepSpeed's XPU accelerator has
        aligned = handed.pin_memory(torch.ones(3), align_bytes=align_bytes)
        assert handed.is_pinned(aligned) and aligned.tolist() == [1, 1, 1]


LIMITED = """
import os, resource, warnings, torch, octavo
from octavo.integrations.deepspeed import OctavoAccelerator

handed, page = OctavoAccelerator(octavo.accelerator.CPU_Accelerator()), octavo._C.page_bytes()
handed.pin_memory(torch.ones(1))  # everything is loaded before rights are given up
resource.setrlimit(resource.RLIMIT_MEMLOCK, (2 * page, 2 * page))
if os.geteuid() == 0:
    os.setuid(65534)  # root is not bound by the limit
warnings.simplefilter("error")
assert handed.is_pinned(handed.pin_memory(torch.ones(page // 4)))
for pin in (
    lambda: handed.pin_memory(torch.ones(page)),
    lambda: handed.pin_memory(torch.ones(page), make_copy=False, match_shape=False),
    lambda: handed.pin_empty(3, page, dtype=torch.uint8),
    lambda: handed.pin_empty_like(torch.ones(page)),
):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        tensor = pin()
    assert tensor.numel() >= page and not handed.is_pinned(tensor)
    print(warned[0].message)
"""


def test_beyond_the_limit_of_locked_memory_deepspeed_goes_on_with_a_warning(integration):
    exit_code, said, complaint = run_code(LIMITED)
    assert exit_code == 0, complaint
    sentences = [line for line in said.splitlines() if "not page-locked" in line]
    assert len(sentences) == 4 and all("RLIMIT_MEMLOCK is" in sentence for sentence in sentences)


def test_a_device_that_copies_from_locked_memory_is_not_given_other(integration, monkeypatch):
    def refuse(self, *arguments):
        raise MemoryError("no more")

    monkeypatch.setattr(CUDA_Accelerator, "pinned_zeros", refuse)
    with pytest.raises(MemoryError, match="no more"):
        integration.OctavoAccelerator(CUDA_Accelerator()).pin_memory(torch.ones(3))


def test_any_device_is_the_current_one_without_an_index(integration):
    handed = integration.OctavoAccelerator(CPU_Accelerator())
    handed.set_device(torch.device("cpu"))
    handed.set_device(0)
    with pytest.raises(ValueError, match=r"expected the index of a device.*, got -1$"):
        handed.set_device(-1)


@pytest.mark.parametrize("make", HERE, ids=lambda make: make.__name__)
def test_a_tensors_device_names_its_streams(integration, make):
    handed = integration.OctavoAccelerator(make())
    tensor = torch.ones(1, device=handed.device(0))
    assert handed.current_stream(tensor.device) is handed.current_stream()
    assert handed.default_stream(tensor.device) is handed.default_stream()
    assert handed.memory_allocated(tensor.device) > 0


@pytest.mark.parametrize("make", HERE, ids=lambda make: make.__name__)
def test_ranks_share_a_processor(integration, make):
    handed = integration.OctavoAccelerator(make())
    if not handed.octavo.is_host_processor():
        pytest.skip("each rank has a device of its own")
    count = handed.device_count()
    assert handed.device_name(str(count)) == handed.device_name(0)
    handed.set_device(count)
    assert handed.current_device() == 0


def test_native_builders_are_deepspeeds(integration):
    builder = CPU_Accelerator().create_op_builder("CPUAdamBuilder")
    assert builder.NAME == "cpu_adam"
    assert type(CPU_Accelerator().create_op_builder("NoSuchBuilder")).__name__ == "NotImplementedBuilder"


def test_packbits_has_deepspeeds_name(integration):
    import deepspeed
    import deepspeed.ops.xpu_packbits as xpu_pack

    assert xpu_pack.packbits is octavo.packbits and deepspeed.ops.xpu_packbits is xpu_pack


TRAIN = Path(__file__).with_name("deepspeed_training.py")


@pytest.mark.ranks
@pytest.mark.parametrize(("device", "zero_stages", "ranks"), [("cpu", "0123", 2), ("sycl", "3", 1), ("sycl", "3", 2)])
def test_deepspeed_trains_as_torch_does(integration, device, zero_stages, ranks):
    if device == "sycl" and (reason := octavo.sycl.why_missing()):
        pytest.skip(f"no device sycl: {reason}")
    done = run_ranks(ranks, TRAIN.read_text(), *zero_stages, timeout_s=100, OCTAVO_ACCELERATOR=device)
    for exit_code, said, complaint in done:
        assert exit_code == 0, complaint
        assert "equal\n" in said


def test_without_deepspeed_there_is_one_sentence(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "deepspeed"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.delitem(sys.modules, "octavo.integrations.deepspeed", raising=False)
    with pytest.raises(ImportError, match=r"^\[integrations\.deepspeed\] the package deepspeed does not import"):
        importlib.import_module("octavo.integrations.deepspeed")
    with pytest.raises(
        ImportError, match=r"^\[accelerator\.get_op_builder\] .* package deepspeed, which does not import"
    ):
        CPU_Accelerator().get_op_builder("CPUAdamBuilder")


def test_an_accelerator_that_deepspeed_does_not_know_is_named():
    program = """
from octavo.accelerator import CPU_Accelerator
calls = [
    lambda: CPU_Accelerator().get_op_builder("CPUAdamBuilder"),
    lambda: __import__("octavo.integrations.deepspeed"),
]
for call in calls:
    try:
        call()
    except ImportError as error:
        print(error)
"""
    status, said, errors = run_code(program, timeout_s=100, DS_ACCELERATOR="sycl")
    assert status == 0, errors
    of_builder, of_module = said.splitlines()[-2:]
    assert (
        of_builder.startswith("[accelerator.get_op_builder] ") and "Unset DS_ACCELERATOR, or set it to a" in of_builder
    )
    assert of_module.startswith("[integrations.deepspeed] ") and "Unset DS_ACCELERATOR, or set it to a" in of_module
