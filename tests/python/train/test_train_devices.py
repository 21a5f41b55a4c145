# SPDX-License-Identifier: Apache-2.0
"""The device that `octavo train` chooses, and how it reports that."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from fork_server import run_code

import octavo
import octavo.sycl
from octavo.accelerator import CPU_Accelerator, CUDA_Accelerator
from octavo.train import devices
from octavo.train.config import TrainConfig
from octavo.train.strategy.precision import choose_precision


@pytest.fixture
def detection(monkeypatch) -> Iterator[pytest.MonkeyPatch]:
    """Makes the process one in which nothing was chosen yet."""
    for name in ("OCTAVO_ACCELERATOR", "DS_ACCELERATOR"):
        monkeypatch.delenv(name, raising=False)
    octavo.set_accelerator(None)
    yield monkeypatch
    octavo.set_accelerator(None)


def test_auto_takes_the_accelerator_that_is_asked_for(detection):
    if octavo.sycl.why_missing():
        pytest.skip(f"no device sycl: {octavo.sycl.why_missing()}")
    detection.setenv("OCTAVO_ACCELERATOR", "sycl")
    taken = devices.choose("auto")
    assert taken.type == "sycl" and devices.describe(taken, "auto") == str(taken)


def test_auto_is_the_cpu_where_nothing_else_is(detection):
    detection.setattr(CUDA_Accelerator, "is_available", lambda self: False)
    taken = devices.choose("auto")
    assert taken == torch.device("cpu") and devices.describe(taken, "auto") == "cpu"


def test_the_cpu_is_taken_without_loading_the_run_time_of_sycl(detection):
    """The threads of that library would exist at the end of every process; one process was ended by SIGABRT in them."""
    code = (
        "from octavo.train import devices\ntaken = devices.choose('auto')\n"
        "print(taken, devices.describe(taken, 'auto'))\nprint('liboctavo_sycl' in open('/proc/self/maps').read())"
    )
    exit_code, said, complaint = run_code(code, OCTAVO_ACCELERATOR="cpu")
    assert exit_code == 0, complaint
    assert said.splitlines() == ["cpu cpu", "False"]


def test_auto_says_why_it_leaves_the_accelerator_alone(detection):
    detection.setattr(CUDA_Accelerator, "is_available", lambda self: True)
    taken = devices.choose("auto")
    assert taken == torch.device("cpu")
    assert devices.describe(taken, "auto") == "cpu (Octavo has no kernels for cuda here)"
    assert devices.describe(taken, "cpu") == "cpu"


def test_a_device_that_is_absent_is_refused_with_the_reason(detection):
    detection.setattr(CUDA_Accelerator, "is_available", lambda self: False)
    detection.setattr(CUDA_Accelerator, "why_absent", lambda self: "nobody bought one")
    said = r"cuda was asked for, but there is no such device here: nobody bought one$"
    with pytest.raises(NotImplementedError, match=said):
        devices.choose("cuda")


def test_a_device_without_kernels_is_refused_with_the_reason(detection):
    detection.setattr(CUDA_Accelerator, "is_available", lambda self: True)
    with pytest.raises(NotImplementedError, match=r"^\[train\.device\] Octavo has no kernels for cuda here: .*driver"):
        devices.choose("cuda")


def test_kernels_for_xpu_are_those_of_sycl(detection):
    xpu = SimpleNamespace(
        device_name=lambda: "xpu",
        device_count=lambda: 2,
        set_device=lambda index: None,
        current_device=lambda: 1,
        device=lambda index: torch.device("xpu", index),
    )
    detection.setattr(octavo.accelerator, "accelerator_named", lambda name: xpu)
    detection.setattr(octavo._C, "backend_status", lambda name: {"available": name == "sycl", "reason": "none"})
    assert devices.choose("xpu") == torch.device("xpu", 1)


class Peers:
    """Ranks of which each has named a host and a device."""

    def __init__(self, *others: tuple[str, str]) -> None:
        self.others, self.size = list(others), 1 + len(others)

    def gather(self, own: tuple[str, str]) -> list[tuple[str, str]]:
        return [own, *self.others]


def test_ranks_that_share_a_gpu_take_gloo_which_nccl_would_refuse(detection):
    """Where each rank sees only its own GPU, all of them call it cuda:0."""
    here = socket.gethostname()
    detection.setattr(CUDA_Accelerator, "is_available", lambda self: True)
    detection.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="first"))
    gpu = torch.device("cuda", 0)
    assert devices.collectives_for(gpu, Peers((here, "second"))) == "cpu:gloo,cuda:nccl"
    assert devices.collectives_for(gpu, Peers((f"not {here}", "first"))) == "cpu:gloo,cuda:nccl"
    assert devices.collectives_for(gpu, Peers((here, "first"))) == "gloo"


def test_ranks_of_a_machine_take_turns_over_its_devices(detection):
    chosen = []

    class Two(CPU_Accelerator):
        def device_count(self) -> int:
            return 2

        def set_device(self, device_index) -> None:
            chosen.append(device_index)

    detection.setattr(octavo.accelerator, "accelerator_named", lambda name: Two())
    for rank in range(4):
        detection.setenv("LOCAL_RANK", str(rank))
        devices.choose("cpu")
    assert chosen == [0, 1, 0, 1]


@pytest.mark.parametrize("is_supported", [False, True])
@pytest.mark.parametrize("gpu", ["cuda", "xpu"])
def test_a_gpu_decides_on_bf16_itself(monkeypatch, gpu, is_supported):
    monkeypatch.setattr(torch.get_device_module(gpu), "is_bf16_supported", lambda including_emulation: is_supported)
    world = SimpleNamespace(from_main=lambda value: value)
    chosen = choose_precision(TrainConfig(), world, torch.device(gpu), hidden_size=64)
    assert chosen == ("bf16" if is_supported else "fp32")
