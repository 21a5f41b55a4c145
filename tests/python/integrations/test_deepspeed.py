# SPDX-License-Identifier: Apache-2.0
"""The real DeepSpeed under Octavo's accelerator, on the CPU."""

import importlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import octavo
from octavo.accelerator import CPU_Accelerator, CUDA_Accelerator, XPU_Accelerator


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


def test_any_device_is_the_current_one_without_an_index(integration):
    handed = integration.OctavoAccelerator(CPU_Accelerator())
    handed.set_device(torch.device("cpu"))
    handed.set_device(0)
    with pytest.raises(ValueError, match="set_device"):
        handed.set_device(-1)


def test_native_builders_are_deepspeeds(integration):
    builder = CPU_Accelerator().create_op_builder("CPUAdamBuilder")
    assert builder.NAME == "cpu_adam"
    assert type(CPU_Accelerator().create_op_builder("NoSuchBuilder")).__name__ == "NotImplementedBuilder"


def test_packbits_has_deepspeeds_name(integration):
    import deepspeed
    import deepspeed.ops.xpu_packbits as xpu_pack

    assert xpu_pack.packbits is octavo.packbits and deepspeed.ops.xpu_packbits is xpu_pack


TRAIN = Path(__file__).with_name("deepspeed_training.py")


@pytest.mark.parametrize(("device", "zero_stage"), [("cpu", 0), ("cpu", 1), ("cpu", 2), ("cpu", 3), ("sycl", 3)])
def test_deepspeed_trains_as_torch_does(integration, device, zero_stage):
    if device == "sycl" and octavo.sycl.why_missing():
        pytest.skip(octavo.sycl.why_missing())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    rank = {
        "OCTAVO_ACCELERATOR": device,
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    done = subprocess.run(
        [sys.executable, TRAIN, str(zero_stage)], env=os.environ | rank, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("equal\n")


def test_without_deepspeed_there_is_one_sentence(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "deepspeed"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.delitem(sys.modules, "octavo.integrations.deepspeed", raising=False)
    with pytest.raises(ImportError, match=r"^\[integrations\.deepspeed\] expected the package deepspeed"):
        importlib.import_module("octavo.integrations.deepspeed")
    with pytest.raises(ImportError, match=r"^\[accelerator\.get_op_builder\] expected the package deepspeed"):
        CPU_Accelerator().get_op_builder("CPUAdamBuilder")
